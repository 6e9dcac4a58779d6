//! The header that each rank publishes first in a long collective: what it calls, and where others find its bytes.

use gapless_sync::mailboxes::Flag;

use super::SmContext;
use super::long_plan::{LongPlan, SLOTS};
use super::short_plan::{FAILED, LONG};
use crate::Operation;
use crate::execute::error::{CollError, NOTICE_BYTES};

/// Bytes of the header: the operation, which slot comes first, which buffers can be mapped, the root, how long the
/// vector or a block is ([`LongPlan::told_bytes`]), and what stands for the lengths of blocks ([`LongPlan::digest`]).
pub(super) const HEADER_BYTES: usize = 24;

/// The header of a rank that calls this.
pub(super) fn header(plan: &LongPlan, me: usize, first: usize, flags: u8) -> [u8; HEADER_BYTES] {
    let mut bytes = [0; HEADER_BYTES];
    bytes[0] = plan.operation().code();
    bytes[1] = u8::try_from(first).unwrap_or(0);
    bytes[2] = flags;
    bytes[4..8].copy_from_slice(&root(plan).to_le_bytes());
    bytes[8..16].copy_from_slice(&plan.told_bytes(me).to_le_bytes());
    bytes[16..].copy_from_slice(&plan.digest().to_le_bytes());
    bytes
}

/// The root, or a rank that there is not.
fn root(plan: &LongPlan) -> u32 {
    plan.root().and_then(|root| u32::try_from(root).ok()).unwrap_or(u32::MAX)
}

/// A rank's header, as another rank reads it.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Header {
    /// Of the operation.
    pub(super) kind: u8,
    pub(super) first: usize,
    pub(super) flags: u8,
    root: u32,
    pub(super) len: u64,
    digest: u64,
}

/// What a rank's header says.
pub(super) fn read_header(local_rank: usize, cx: &SmContext<'_>) -> Header {
    let mut bytes = [0; HEADER_BYTES];
    cx.mailbox.read(&cx.mailboxes, local_rank, 0, &mut bytes);
    let [kind, first, flags, ..] = bytes;
    let (mut root, mut len, mut digest) = ([0; 4], [0; 8], [0; 8]);
    root.copy_from_slice(&bytes[4..8]);
    len.copy_from_slice(&bytes[8..16]);
    digest.copy_from_slice(&bytes[16..]);
    let (first, root) = (usize::from(first) % SLOTS, u32::from_le_bytes(root));
    let (len, digest) = (u64::from_le_bytes(len), u64::from_le_bytes(digest));
    Header { kind, first, flags, root, len, digest }
}

/// Why a rank has failed, as its entry of this round says.
pub(super) fn notice(source: usize, cx: &SmContext<'_>) -> CollError {
    let rank = cx.subgroup.rank(source);
    let mut notice = [0; NOTICE_BYTES];
    cx.mailbox.read(&cx.mailboxes, source, 0, &mut notice);
    CollError::told(notice, rank, cx.subgroup.comm().size())
}

/// What a rank's header says, if it calls what this one calls.
pub(super) fn agree(
    plan: &LongPlan,
    source: usize,
    flag: Flag,
    cx: &SmContext<'_>,
) -> Result<Header, CollError> {
    let rank = cx.subgroup.rank(source);
    let (ours, expected) = (plan.operation(), plan.told_bytes(source));
    if flag.kind == FAILED {
        return Err(notice(source, cx));
    }
    let header = match flag.kind {
        LONG => read_header(source, cx),
        kind => Header { kind, len: u64::from(flag.len), ..Header::default() },
    };
    let theirs = Operation::from_code(header.kind);
    if theirs != Some(ours) {
        return Err(CollError::Mismatch { rank, theirs, ours });
    }
    if header.len != expected || flag.kind != LONG {
        return Err(CollError::Length { rank, sent: header.len, expected });
    }
    if header.root != root(plan) {
        let named = |root: u32| cx.subgroup.rank(root as usize).to_string();
        let (given, expected) = (named(header.root), named(root(plan)));
        let (argument, other) = ("root", cx.subgroup.own());
        return Err(CollError::Differs { rank, argument, given, other, expected });
    }
    if header.digest != plan.digest() {
        let list = |digest: u64| format!("a list with digest {digest:x}");
        let (given, expected) = (list(header.digest), list(plan.digest()));
        let (argument, other) = ("lengths of blocks", cx.subgroup.own());
        return Err(CollError::Differs { rank, argument, given, other, expected });
    }
    Ok(header)
}
