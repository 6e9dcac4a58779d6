//! What arrives, and losses: the handler that `bml` calls.

use super::initiator::VERDICTS_MAX;
use super::queue::work_quickly;
use super::run::lay_down;
use super::{Blamed, Xtq, XtqState, lost_error};
use crate::wire::{HEAD_BYTES, Head, Ring, TEXT_MAX};
use gapless_bml::{Bml, Fragment, Handler, LinkError, Rank, RankEvent};

/// Bytes of answers to one peer that wait for room, above which its puts are refused for now. Tasks that are in queues
/// then may add to them.
pub(super) const ANSWERS_MAX: usize = 16 << 20;

pub(super) struct Nic {
    xtq: Xtq,
}

impl Nic {
    pub(super) fn new(xtq: Xtq) -> Nic {
        Nic { xtq }
    }
}

/// The layer below is gone: nobody waits for what cannot come any more.
impl Drop for Nic {
    fn drop(&mut self) {
        lay_down(self.xtq.abandon());
    }
}

impl Handler for Nic {
    fn handle(&mut self, bml: &mut Bml, event: RankEvent) {
        match event {
            RankEvent::Arrived { from, fragment, .. } => {
                let inner = &self.xtq.inner;
                let (handled, quick) = inner.with(|state| {
                    let handled = state.arrived(&self.xtq, from, fragment);
                    let quick = std::mem::take(&mut state.target.quick);
                    // The answer goes at once; that of a quick task with its end.
                    if quick.is_empty() {
                        state.flush_peer(bml, from);
                    }
                    (handled, quick)
                });
                if !quick.is_empty() {
                    quick.iter().for_each(|queue| work_quickly(inner, queue));
                    // Others may have put some of them.
                    inner.with(|state| state.flush(bml));
                }
                if let Err(what) = handled {
                    tracing::warn!(%from, what, "a message about tasks breaks the rules");
                    bml.give_up(from, LinkError::Corrupt { what });
                }
            }
            RankEvent::Lost { peer, error } => {
                let blamed = bml.blame(peer).unwrap_or((peer, error));
                self.xtq.inner.with(|state| state.lose(peer, &blamed));
            }
            RankEvent::Completed { token, result } => {
                self.xtq.inner.with(|state| state.initiator.carried(token.0, result));
            }
            RankEvent::Sent { .. } => {}
        }
    }
}

impl XtqState {
    /// A message, and those that came before their turn. An error says how its sender breaks the rules.
    fn arrived(&mut self, xtq: &Xtq, from: Rank, fragment: Fragment) -> Result<(), String> {
        if self.left {
            return Ok(());
        }
        let (serial, head) = read_head(&fragment)?;
        let mut next = self.links.entry(from.0).or_default().arrived(serial, (head, fragment))?;
        while let Some((head, fragment)) = next {
            self.handle(xtq, from, head, &fragment)?;
            drop(fragment);
            next =
                self.links.get_mut(&from.0).and_then(super::ordered_link::OrderedLink::next_early);
        }
        Ok(())
    }

    fn handle(
        &mut self,
        xtq: &Xtq,
        from: Rank,
        head: Head,
        fragment: &Fragment,
    ) -> Result<(), String> {
        let verdict = match head {
            Head::Put { put, number } => {
                let is_behind = self.initiator.answer_bytes(from) > ANSWERS_MAX;
                Some((put, self.target.put(xtq, (from, put, number), is_behind, fragment)?))
            }
            Head::Data { transfer, offset } => {
                self.target.data(xtq, (from, transfer, offset), fragment)?
            }
            Head::Verdict { put, verdict } => {
                self.initiator.verdict(from, put, verdict)?;
                None
            }
            Head::Ended { put, failed: true } => {
                let reason = String::from_utf8_lossy(&read_text(fragment)?).into_owned();
                self.initiator.ended(from, put, Err(reason))?;
                None
            }
            Head::Ended { put, failed: false } => {
                self.initiator.piece(from, put, read_rest(fragment)?)?;
                self.initiator.ended(from, put, Ok(()))?;
                None
            }
            Head::Answer { put } => {
                self.initiator.piece(from, put, read_rest(fragment)?)?;
                None
            }
            Head::Ring { what: what @ (Ring::Ready | Ring::Declined | Ring::Wanted), .. } => {
                self.target.rings.hear(from, what)?;
                None
            }
            Head::Ring { what, kernels } => {
                self.initiator.hear(from, (what, kernels), &read_text(fragment)?)?;
                None
            }
        };
        if let Some((put, verdict)) = verdict {
            self.initiator.say(from, Head::Verdict { put, verdict }, Vec::new());
            let verdicts = self.initiator.verdicts(from);
            if verdicts > VERDICTS_MAX {
                return Err(format!("{verdicts} puts whose verdicts it does not receive"));
            }
        }
        Ok(())
    }

    fn lose(&mut self, rank: Rank, blamed: &Blamed) {
        self.links.remove(&rank.0);
        self.target.lose(rank);
        self.initiator.lose(rank, blamed);
        self.lost.insert(rank.0, blamed.clone());
        self.forsake_all(&lost_error(blamed), |signal| signal.counts(rank));
    }
}

fn read_head(fragment: &Fragment) -> Result<(u32, Head), String> {
    let mut head = [0; HEAD_BYTES];
    let short = |error| format!("a message of {} bytes: {error}", fragment.len());
    fragment.read(0, &mut head).map_err(short)?;
    Head::read(&head)
}

fn read_text(fragment: &Fragment) -> Result<Vec<u8>, String> {
    let len = fragment.len() - HEAD_BYTES;
    if len > TEXT_MAX {
        return Err(format!("a text of {len} bytes"));
    }
    read_rest(fragment)
}

/// What is behind the head.
fn read_rest(fragment: &Fragment) -> Result<Vec<u8>, String> {
    let mut rest = vec![0; fragment.len() - HEAD_BYTES];
    fragment.read(HEAD_BYTES, &mut rest).map_err(|error| error.to_string())?;
    Ok(rest)
}
