//! The parser takes anything, and so does the interpreter what it parses.

use ghost_cpu_device::ptx;
use proptest::prelude::*;

const KERNELS: &str = include_str!("../ptx/kernels.ptx");

#[test]
fn parameters_have_their_places() {
    let module = ptx::parse(KERNELS.as_bytes()).unwrap();
    let saxpy = module.kernels().find(|k| k.name() == "saxpy").unwrap();
    let places: Vec<_> = saxpy.params().iter().map(|p| (p.offset, p.size)).collect();
    assert_eq!(places, [(0, 4), (4, 4), (8, 8), (16, 8)]);
}

proptest! {
    #[test]
    fn no_bytes_make_it_panic(bytes in proptest::collection::vec(any::<u8>(), 0..400)) {
        let _ = ptx::parse(&bytes);
    }

    #[test]
    fn no_edit_makes_it_panic(
        at in 0..KERNELS.len(), cut in 0..40_usize, put in "[ -~\n]{0,12}",
    ) {
        let mut bytes = KERNELS.as_bytes().to_vec();
        let end = (at + cut).min(bytes.len());
        bytes.splice(at..end, put.bytes());
        let _ = ptx::parse(&bytes);
    }
}
