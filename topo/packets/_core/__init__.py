"""The compiled part: `simulator` (packets through links and queues), ``heap``, ``dcqcn``."""
