"""What connects GPUs: fabrics, routes and the collectives that run on them."""
