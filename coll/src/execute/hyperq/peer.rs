//! What a leader knows of another rank: what it has ordered, and what is not done.

use super::CallPart;
use super::control::{
    Control, GATHER_DROP, GATHER_IPC, GATHER_STAGED, GATHERED, GO, Presence, SCATTER_IPC,
    SCATTER_STAGED, SCATTERED, SEEN,
};

/// What the leader knows of another rank.
#[derive(Clone, Debug, Default)]
pub(super) struct Peer {
    pub(super) here: bool,
    pub(super) orders: u32,
    /// Chunks that it has staged and that are, or were, on their way to the buffer.
    pub(super) hopped: u32,
    /// Those of them that have arrived.
    pub(super) taken: u32,
    /// Whether the policy was told of the end of its copy by IPC, by staging, and in the scatter; and whether it has
    /// said that it knows that all was gathered.
    pub(super) told: [bool; 4],
}

/// Owed, and not reported: a copy that the leader makes itself of what a rank stages.
const STAGED: u32 = 1 << 31;

impl Peer {
    /// Whether chunks that it stages are moved to the buffer.
    pub(super) fn takes(&self, part: &CallPart) -> bool {
        self.orders & (GATHER_STAGED | GATHER_DROP) == GATHER_STAGED
            && self.hopped < part.staging.chunks()
    }

    /// What it has been told to do and has not reported.
    pub(super) fn owed(&self) -> u32 {
        let [ipc, staged, scattered, seen] = self.told;
        let owes = |orders: u32, told: bool, report: u32| {
            if self.orders & orders != 0 && !told { report } else { 0 }
        };
        owes(GATHER_IPC, ipc, GATHERED)
            | owes(SCATTER_IPC | SCATTER_STAGED, scattered, SCATTERED)
            | owes(GO, seen, SEEN)
            | if self.orders & GATHER_DROP == 0 { owes(GATHER_STAGED, staged, STAGED) } else { 0 }
    }
}

/// A rank's reports. If it is in a later call, it has done what it `owed`.
pub(super) fn said(rank: usize, owed: u32, part: &CallPart, control: &Control) -> u32 {
    let reports = control.reports(rank, part.number);
    match owed & !reports & (GATHERED | SCATTERED | SEEN) {
        0 => reports,
        missing if control.presence(rank, part.number) == Presence::Elsewhere => reports | missing,
        _ => reports,
    }
}
