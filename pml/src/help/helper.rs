//! The sender's part: it copies pieces from the back of its message into the receiver's buffer, for as long as the
//! receiver lets it.

use super::word::{State, Word};
use super::{bytes_of, most_of, settled};
use crate::buffer::{Buffer, Engines};
use crate::choose::Protocol;
use crate::core::Core;
use crate::header::{self, Help, HelpLayout, Why};
use crate::mapped::{Far, remote};
use crate::rendezvous::packed_size;
use crate::request::RequestId;
use crate::send::SendStage;
use crate::staged::map_peer;
use gapless_bml::{Bml, Mapping};
use gapless_engine::{EngineError, Typed};
use gapless_mem::Space;

/// A send that copies for its receiver.
#[derive(Debug)]
pub(crate) struct Helping {
    mapping: Mapping,
    remote: Typed,
    word: Word,
    turn: u32,
    piece: u64,
    end: u64,
    reply: u64,
    /// Pieces from here on were taken.
    back: u16,
}

/// How far it is.
enum Outcome {
    /// Pieces may be left.
    Going,
    /// Nothing is left for the sender.
    Ended,
    /// Its engine has failed; the word still says that it is at work.
    Failed(EngineError),
    /// The receiver has broken the protocol.
    Corrupt,
}

impl Helping {
    /// Copies pieces until none is left or `step` bytes are copied; gives how many times it copied.
    fn copy_some(&mut self, buffer: &Buffer, engines: &Engines, step: u64) -> (Outcome, u64) {
        let (mut copies, mut copied) = (0, 0);
        let most = most_of(step, self.piece);
        // Each turn takes something, or the receiver has: as many as there are pieces.
        for _ in 0..=u16::MAX {
            let Ok(state) = self.word.load() else { return (Outcome::Corrupt, copies) };
            if state.turn != self.turn {
                return (Outcome::Ended, copies);
            }
            if state.back > self.back || (state.front > state.back) {
                return (Outcome::Corrupt, copies);
            }
            let full = copied >= step.max(1);
            let taken = state.take_back(most).filter(|_| !full);
            let Some((next, pieces)) = taken else {
                // What was copied is there before the word says so.
                let rests = State { busy: false, ..state };
                if state.busy && self.word.exchange(state, rests).ok() != Some(state) {
                    continue;
                }
                return (if full { Outcome::Going } else { Outcome::Ended }, copies);
            };
            if self.word.exchange(state, next).ok() != Some(state) {
                continue;
            }
            self.back = next.back;
            let range = bytes_of(&pieces, self.piece, self.end);
            copied += range.end - range.start;
            copies += 1;
            let moved = buffer.put_mapped(engines, &self.mapping, &self.remote, range);
            if let Err(error) = moved.and_then(settled) {
                return (Outcome::Failed(error), copies);
            }
        }
        (Outcome::Corrupt, copies)
    }
}

impl Core {
    /// The receiver asks for help. What cannot be done is not done, without a word.
    pub(crate) fn asked(
        &mut self,
        bml: &mut Bml,
        from: u32,
        help: &Help,
        inline: &[u8],
    ) -> Result<(), String> {
        let (id, send) = self.offered(from, help.serial)?;
        let typed = send.buffer.typed();
        let (bytes, own) = (typed.packed_bytes(), typed.layout().clone());
        let possible = typed.space().cpu_accessible();
        let offered = match &send.stage {
            SendStage::Offered(offered) => offered,
            _ => return Err("help with what is not offered".to_owned()),
        };
        if help.end > bytes || offered.rts.mapped.is_none() || offered.helping.is_some() {
            return Err(format!("a HELP for {} bytes of {bytes}", help.end));
        }
        let layout = match help.layout {
            HelpLayout::Gapless => None,
            HelpLayout::Yours => Some(own),
            HelpLayout::Named(name) => {
                let layouts = &mut self.peers[from as usize].layouts;
                match layouts.insert(name, inline, &self.config.bounds)? {
                    Some(layout) => Some(layout),
                    // More than is decoded here.
                    None => return Ok(()),
                }
            }
        };
        if let Some(layout) = &layout {
            let packed = packed_size(layout, help.count, help.low, help.span)?;
            if help.end > packed {
                return Err(format!("a HELP for {} bytes of a buffer for {packed}", help.end));
            }
        }
        let maps = [help.key, help.word].map(|key| map_peer(bml, from, &key, Space::Host));
        let [Ok(mapping), Ok(word)] = maps else {
            tracing::debug!(peer = from, "a buffer that cannot be mapped to help with");
            return Ok(());
        };
        let far =
            Far { low: help.low, span: help.span, count: help.count, layout: layout.as_ref() };
        let remote = remote(far, &mapping)?;
        if !possible || !remote.space().cpu_accessible() {
            return Err("help with memory of a device".to_owned());
        }
        let helping = Helping {
            mapping,
            remote,
            word: Word::theirs(word),
            turn: State::new(0, help.turn).turn,
            piece: u64::from(help.piece),
            end: help.end,
            reply: help.reply,
            back: help.pieces().ok_or("a HELP of too many pieces")?,
        };
        if let Some(send) = self.requests.send_mut(id)
            && let SendStage::Offered(offered) = &mut send.stage
        {
            offered.helping = Some(Box::new(helping));
            self.help_on(bml, id);
        }
        Ok(())
    }

    /// Copies pieces, as many as one call may; gives how many times it copied.
    pub(super) fn help_on(&mut self, bml: &mut Bml, id: RequestId) -> usize {
        let step = self.config.tuning.single_copy_batch_bytes;
        let Some(send) = self.requests.send_mut(id) else { return 0 };
        let peer = send.to.peer;
        let SendStage::Offered(offered) = &mut send.stage else { return 0 };
        let Some(helping) = &mut offered.helping else { return 0 };
        let (outcome, copies) = helping.copy_some(&send.buffer, &self.engines, step);
        let reply = helping.reply;
        self.counters.tally(Protocol::Mapped).copies += copies;
        match outcome {
            Outcome::Going => self.helping.push(id),
            Outcome::Ended => {}
            Outcome::Failed(error) => {
                tracing::debug!(peer, %error, "an engine that did not help");
                self.send_control(bml, peer, &header::refuse(reply, Why::Exhausted));
            }
            Outcome::Corrupt => {
                let what = "a word that no honest receiver leaves, of a message that both copy";
                self.give_up(bml, peer, what.to_owned());
            }
        }
        usize::try_from(copies).unwrap_or(usize::MAX)
    }
}
