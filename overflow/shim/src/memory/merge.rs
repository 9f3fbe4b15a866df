//! Shared memory that both sides write: what each has changed, against the bytes on which they
//! last agreed.

const PAGE: usize = 4096;

/// The runs of bytes that differ between `mine` and `base`: offset and length, ascending.
pub(super) fn differing(mine: &[u8], base: &[u8]) -> Vec<(usize, usize)> {
    let mut runs: Vec<(usize, usize)> = Vec::new();
    let pages = mine.chunks(PAGE).zip(base.chunks(PAGE));
    for (page, (mine, base)) in pages.enumerate().filter(|(_, (mine, base))| mine != base) {
        for (at, (mine, base)) in mine.iter().zip(base).enumerate() {
            if mine == base {
                continue;
            }
            let at = page * PAGE + at;
            match runs.last_mut() {
                Some((start, len)) if *start + *len == at => *len += 1,
                _ => runs.push((at, 1)),
            }
        }
    }
    runs
}

/// Takes over what the other side has changed: bytes of `theirs` that are not those of `base` go to
/// `mine`, and both sides agree on all of `theirs`.
pub(super) fn take(theirs: &[u8], mine: &mut [u8], base: &mut [u8]) {
    for ((theirs, mine), base) in theirs.iter().zip(mine).zip(base) {
        if theirs != base {
            *mine = *theirs;
            *base = *theirs;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn writes_of_both_sides_to_different_bytes_are_kept(
            base in prop::collection::vec(0u8..4, 1..9000),
            mine in prop::collection::vec((any::<prop::sample::Index>(), 4u8..8), 0..50),
            theirs in prop::collection::vec((any::<prop::sample::Index>(), 8u8..12), 0..50),
        ) {
            let (mut here, mut there, mut both) = (base.clone(), base.clone(), base.clone());
            let mut merged = base.clone();
            for (at, value) in &mine {
                here[at.index(base.len())] = *value;
                merged[at.index(base.len())] = *value;
            }
            for (at, value) in &theirs {
                there[at.index(base.len())] = *value;
                merged[at.index(base.len())] = *value;
            }
            take(&there, &mut here, &mut both);
            prop_assert_eq!(&here, &merged);
            for (at, len) in differing(&here, &both) {
                prop_assert!(len > 0);
                both[at..at + len].copy_from_slice(&here[at..at + len]);
            }
            prop_assert_eq!(&both, &merged);
            prop_assert_eq!(differing(&here, &both), vec![]);
        }
    }

    #[test]
    fn a_run_goes_over_pages() {
        let base = vec![0; 3 * PAGE];
        let mut mine = base.clone();
        mine[PAGE - 2..PAGE + 3].fill(1);
        mine[2 * PAGE + 5] = 1;
        assert_eq!(differing(&mine, &base), [(PAGE - 2, 5), (2 * PAGE + 5, 1)]);
    }
}
