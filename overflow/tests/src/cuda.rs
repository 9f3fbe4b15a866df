//! The programs of the CUDA runtime, as text: they are built where there is a GPU and `nvcc`.

/// What all of them include: its file's name and text.
pub const HEADER: (&str, &str) = ("check.cuh", include_str!("../cuda/check.cuh"));

/// A program.
#[derive(Debug, Clone, Copy)]
pub struct Source {
    /// Its name.
    pub name: &'static str,
    /// Its text.
    pub text: &'static str,
    /// Libraries that it is linked with, by their files' names.
    pub libraries: &'static [&'static str],
}

macro_rules! sources {
    ($($name:literal [$($library:literal),*])*) => {
        /// All of them.
        pub const SOURCES: &[Source] = &[$(Source {
            name: $name,
            text: include_str!(concat!("../cuda/", $name, ".cu")),
            libraries: &[$($library),*],
        }),*];
    };
}

sources! {
    "runtime" []
    "streams" []
    "graph" []
    "cooperative" []
    "globals" []
    "hostmem" []
    "print" []
    "texture" []
    "ipc" []
    "loop" []
    "blas" ["libcublas.so.13", "libcublasLt.so.13"]
    "fft" ["libcufft.so.12"]
}

/// A network in PyTorch.
pub const MLP: &str = include_str!("../cuda/mlp.py");
