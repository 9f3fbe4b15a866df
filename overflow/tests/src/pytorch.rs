//! The programs of PyTorch, as text: they run where there is a GPU and a `python3` that has it.

/// The name of each file and its text; they lie in one folder.
pub const FILES: &[(&str, &str)] = &[
    ("common.py", include_str!("../pytorch/common.py")),
    ("host.py", include_str!("../pytorch/host.py")),
    ("memory.py", include_str!("../pytorch/memory.py")),
    ("ops.py", include_str!("../pytorch/ops.py")),
    ("train.py", include_str!("../pytorch/train.py")),
];
