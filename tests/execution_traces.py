"""Small execution traces in both layouts, for the tests of what reads them."""

import json

FLOAT = "Tensor(float)"
ADD_ = "aten::add_.Tensor(Tensor(a!) self, Tensor other, *, Scalar alpha=1) -> Tensor(a!)"
MM = "aten::mm(Tensor self, Tensor mat2) -> Tensor"
VIEW = "aten::view(Tensor(a) self, SymInt[] size) -> Tensor(a)"
EMPTY = "aten::empty.memory_format(SymInt[] size, *, Device? device=None) -> Tensor"
COPY_ = "aten::copy_(Tensor(a!) self, Tensor src, bool non_blocking=False) -> Tensor(a!)"
LINEAR = "aten::linear(Tensor input, Tensor weight, Tensor? bias=None) -> Tensor"
CONVOLUTION = "aten::cudnn_convolution(Tensor self, Tensor weight, int[] padding) -> Tensor"


def tensor(storage, elements=4, offset=0, identity=None):
    """A float tensor on the GPU as a trace writes it."""
    return [identity or 1000 + storage, storage, offset, elements, 4, "cuda:0"]


class Writer:
    """Writes nodes one after the other, in the flat or the nested layout."""

    def __init__(self, schema="1.1.1-chakra.0.0.4"):
        self.schema = schema
        self.flat = schema == "1.0.1"
        self.nodes = []
        self.add("[pytorch|profiler|execution_trace|process]", parent=1, tid=0, rf_id=0)
        self.add("[pytorch|profiler|execution_trace|thread]", parent=1, rf_id=0)

    def add(self, name, inputs=(), outputs=(), schema="", parent=2, strides=(), **more):
        """Add a node; types are told from the values. Returns its id."""
        number = len(self.nodes) + 1
        facts = {"rf_id": number, "fw_parent": 0, "seq_id": -1, "scope": 0, "tid": 1, "fw_tid": 0}
        facts |= {"op_schema": schema} | more
        sides = {}
        for key, values in (("input", inputs), ("output", outputs)):
            values = list(values)
            shapes, types = [_shape(v) for v in values], [_type(v) for v in values]
            if self.flat:
                sides |= {
                    f"{key}s": values,
                    f"{key}_shapes": shapes,
                    f"{key}_types": types,
                }
            else:
                sides[f"{key}s"] = {"values": values, "shapes": shapes, "types": types}
                if strides and key == "input":
                    sides["inputs"]["strides"] = list(strides)
        node = {"id": number, "name": name} | sides
        if self.flat:
            node |= {"parent": parent} | facts
        else:
            node["ctrl_deps"] = parent
            node["attrs"] = [
                {
                    "name": key,
                    "type": "string" if isinstance(value, str) else "int64",
                    "value": value,
                }
                for key, value in facts.items()
            ]
        self.nodes.append(node)
        return number

    def write(self, path):
        """Write the file, nodes in order of end as PyTorch does: inner before outer."""
        nodes = [*self.nodes[:1:-1], *self.nodes[:2]]
        path.write_text(json.dumps({"schema": self.schema, "pid": 7, "nodes": nodes}))
        return path


def _is_tensor(value):
    return isinstance(value, list) and len(value) == 6 and isinstance(value[5], str)


def _shape(value):
    if _is_tensor(value):
        return [value[3]]
    return [_shape(v) for v in value] if isinstance(value, list) else []


def _type(value):
    if _is_tensor(value):
        return FLOAT
    if isinstance(value, list):
        if len(value) == 2 and all(isinstance(v, str) for v in value):
            return "Tuple[String,String]"
        return f"GenericList[{','.join(map(_type, value))}]"
    return "String" if isinstance(value, str) else "Int"
