//! The first note of a rank in a long collective: what it calls, and where others find its bytes.

use gapless_sync::mailboxes::Flag;

use super::Place;
use super::pieces::{Plan, SLOTS};
use super::plan::{FAILED, LONG};
use crate::Operation;
use crate::execute::error::{CollError, NOTICE_BYTES};

/// Bytes of the note: the operation, which slot comes first, which buffers can be mapped, the root, how long the vector
/// or a block is ([`Plan::told_bytes`]), and what stands for the lengths of blocks ([`Plan::digest`]).
pub(super) const NOTE: usize = 24;

/// The note of a rank that calls this.
pub(super) fn introduction(plan: &Plan, me: usize, first: usize, flags: u8) -> [u8; NOTE] {
    let mut note = [0; NOTE];
    note[0] = plan.operation().code();
    note[1] = u8::try_from(first).unwrap_or(0);
    note[2] = flags;
    note[4..8].copy_from_slice(&root(plan).to_le_bytes());
    note[8..16].copy_from_slice(&plan.told_bytes(me).to_le_bytes());
    note[16..].copy_from_slice(&plan.digest().to_le_bytes());
    note
}

/// The root, or a rank that there is not.
fn root(plan: &Plan) -> u32 {
    plan.root().and_then(|root| u32::try_from(root).ok()).unwrap_or(u32::MAX)
}

/// A rank's first note.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Introduction {
    /// Of the operation.
    pub(super) kind: u8,
    pub(super) first: usize,
    pub(super) flags: u8,
    root: u32,
    pub(super) len: u64,
    digest: u64,
}

/// What a rank's first note says.
pub(super) fn introduced(rank: usize, place: &Place<'_>) -> Introduction {
    let mut note = [0; NOTE];
    place.mailbox.read(&place.mailboxes, rank, 0, &mut note);
    let [kind, first, flags, ..] = note;
    let (mut root, mut len, mut digest) = ([0; 4], [0; 8], [0; 8]);
    root.copy_from_slice(&note[4..8]);
    len.copy_from_slice(&note[8..16]);
    digest.copy_from_slice(&note[16..]);
    let (first, root) = (usize::from(first) % SLOTS, u32::from_le_bytes(root));
    let (len, digest) = (u64::from_le_bytes(len), u64::from_le_bytes(digest));
    Introduction { kind, first, flags, root, len, digest }
}

/// Why a rank has failed, as its note of this round says.
pub(super) fn notice(source: usize, place: &Place<'_>) -> CollError {
    let rank = place.subgroup.rank(source);
    let mut notice = [0; NOTICE_BYTES];
    place.mailbox.read(&place.mailboxes, source, 0, &mut notice);
    CollError::told(notice, rank, place.subgroup.comm().size())
}

/// What a rank's first note says, if it calls what this one calls.
pub(super) fn agree(
    plan: &Plan,
    source: usize,
    mark: Flag,
    place: &Place<'_>,
) -> Result<Introduction, CollError> {
    let rank = place.subgroup.rank(source);
    let (ours, expected) = (plan.operation(), plan.told_bytes(source));
    if mark.kind == FAILED {
        return Err(notice(source, place));
    }
    let note = match mark.kind {
        LONG => introduced(source, place),
        kind => Introduction { kind, len: u64::from(mark.len), ..Introduction::default() },
    };
    let theirs = Operation::from_code(note.kind);
    if theirs != Some(ours) {
        return Err(CollError::Mismatch { rank, theirs, ours });
    }
    if note.len != expected || mark.kind != LONG {
        return Err(CollError::Length { rank, sent: note.len, expected });
    }
    if note.root != root(plan) {
        let named = |root: u32| place.subgroup.rank(root as usize).to_string();
        let (given, expected) = (named(note.root), named(root(plan)));
        let (argument, other) = ("root", place.subgroup.own());
        return Err(CollError::Differs { rank, argument, given, other, expected });
    }
    if note.digest != plan.digest() {
        let list = |digest: u64| format!("a list with digest {digest:x}");
        let (given, expected) = (list(note.digest), list(plan.digest()));
        let (argument, other) = ("lengths of blocks", place.subgroup.own());
        return Err(CollError::Differs { rank, argument, given, other, expected });
    }
    Ok(note)
}
