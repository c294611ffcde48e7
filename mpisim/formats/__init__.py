"""Workloads of other tools: read into programs, and programs written for them.

- `import_program`: whatever it is, recognised by its content; `FORMATS`.
- `read_chakra`, `write_chakra`: MLCommons Chakra execution traces, as ASTRA-sim 2.0 runs them.
- `read_simai`, `SimaiWorkload`, `simai_program`, `write_simai`: text workloads of SimAI and
  ASTRA-sim 1.0.
- `read_aicb`, `AicbWorkload`, `aicb_program`: tables of AICB, SimAI's benchmark (DeepSpeed,
  Megatron-LM).
- `read_triosim`, `TriosimTrace`, `triosim_program`: TrioSim's traces of one GPU.

Traces with recorded times on CPU and GPU (Kineto, Nsight Systems) are read by `mpisim.traces`.
"""

from .aicb import AicbWorkload, aicb_program, read_aicb
from .chakra import read_chakra
from .chakra_write import write_chakra
from .recognise import FORMATS, import_program
from .simai import SimaiWorkload, read_simai
from .simai_program import simai_program
from .simai_write import rank_to_write, write_simai
from .triosim import TriosimTrace, read_triosim, triosim_program

__all__ = [
    "FORMATS",
    "AicbWorkload",
    "SimaiWorkload",
    "TriosimTrace",
    "aicb_program",
    "import_program",
    "rank_to_write",
    "read_aicb",
    "read_chakra",
    "read_simai",
    "read_triosim",
    "simai_program",
    "triosim_program",
    "write_chakra",
    "write_simai",
]
