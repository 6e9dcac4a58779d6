//! What all ranks found when they compared their bytes.

use crate::failure::Failure;
use crate::memory::Wrong;
use gapless::Communicator;

/// At which rank a byte was wrong, the first of them; all ranks get the same.
pub(super) fn agreed(
    control: &Communicator,
    mine: Result<(), Wrong>,
) -> Result<Option<(u32, Wrong)>, Failure> {
    let mine = match mine {
        Ok(()) => [0, 0, 0, 0],
        Err(wrong) => [1, wrong.offset, u64::from(wrong.found), u64::from(wrong.expected)],
    };
    let mut all = vec![[0u64; 4]; control.size() as usize];
    control.allgather(&mine, all.as_mut_slice().as_flattened_mut())?;
    let byte = |word: u64| word.to_le_bytes()[0];
    Ok((0..).zip(&all).find(|(_, words)| words[0] != 0).map(|(rank, words)| {
        let [_, offset, found, expected] = *words;
        (rank, Wrong { offset, found: byte(found), expected: byte(expected) })
    }))
}
