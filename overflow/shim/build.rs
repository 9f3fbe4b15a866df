//! The shared object is called what programs look for, and stays once it is loaded: its threads
//! run in it.

fn main() {
    println!("cargo:rerun-if-changed=build.rs");
    for arg in ["-Wl,-soname,libcuda.so.1", "-Wl,-z,nodelete"] {
        println!("cargo:rustc-cdylib-link-arg={arg}");
    }
}
