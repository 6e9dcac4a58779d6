//! Mapped, with the sender's help: where both buffers can be mapped, both processes copy the message at the same
//! time, the receiver from its front and the sender from its back.
//!
//! ```text
//! sender                             receiver
//!   | RTS(mapped key, layout) ------> | choose -> mapped; map
//!   | <- HELP(key, word, layout, end) |
//!   | map, take pieces from the back  | take pieces from the front      (both: exchange the word)
//!   | Engine::transfer, into there    | Engine::transfer, out of there
//!   |   ...                           |   ...
//!   | <----------------------- FIN -- | complete: nothing left, and the sender not at work
//!   | complete                        |
//! ```
//!
//! Pieces are taken, never given: in a word of the receiver's that both map (`help/word.rs`). A sender that cannot, or
//! does not poll, takes none, and the receiver copies all. The receiver believes nothing that it finds in the
//! word unless the sender may have written it; else the sender is lost.
//!
//! **No receive ends while its sender writes its buffer**: the word says when the sender is at work, for as long as one piece
//! takes. Where the sender is lost meanwhile, the receive ends when the word says that it rests, or when the transport says
//! that its process is no more ([`Bml::recall`]). An engine that fails at the sender is told of by REFUSE, with the word
//! left as it is; then the message goes another way.

mod helper;
#[allow(unsafe_code, reason = "changes the word that it shares with a peer")]
mod word;

pub(crate) use helper::Helping;

use crate::buffer::{Buffer, Engines};
use crate::choose::Protocol;
use crate::core::Core;
use crate::hash::FastMap;
use crate::header::{HELP_BYTES, Help, HelpLayout, INLINE_LAYOUT_MAX, PIECE_MIN};
use crate::recv::RecvStage;
use crate::rendezvous::{Stage, map_key};
use crate::request::RequestId;
use gapless_bml::{Allocation, Bml, Mapping, Rank, RemoteKey};
use gapless_dtype::{Convertor, Layout, Run};
use gapless_engine::{EngineError, Typed};
use gapless_mem::{Completion, Region, WORD_BYTES};
use std::ops::Range;
use word::{State, Word};

/// Shortest message that a sender is asked to help with: a shorter one is copied before the sender hears of it.
const BYTES_MIN: u64 = 2 * PIECE;
/// Pieces of a message at most, more or less: they bound how long one end waits for the other's last.
const PIECES: u64 = 256;
/// Shortest piece, in bytes: to take one costs a cache line's way from one processor to the other, and a
/// processor's prefetching begins anew. Of 64 KiB, pieces of 32 KiB took 4.8 us, of 8 KiB 5.3 us, no help 5.1 us.
const PIECE: u64 = 32 << 10;
const _: () = assert!(PIECE >= PIECE_MIN as u64);

/// What is known of a peer that helps, and the word that is shared with it.
#[derive(Debug, Default)]
pub(crate) struct Helper {
    home: Option<Home>,
    /// There is no memory for a word, or no key to it.
    never: bool,
    turn: u32,
    in_use: bool,
    /// Whether layouts of its, by its names, are those of ours, by our names.
    alike: FastMap<(u64, u64), bool>,
}

#[derive(Debug)]
struct Home {
    allocation: Allocation,
    key: RemoteKey,
}

/// A receive that both ends copy.
#[derive(Debug)]
pub(crate) struct Shared {
    mapping: Mapping,
    remote: Typed,
    word: Word,
    /// The word as it was left, or found.
    state: State,
    piece: u64,
    /// What the sender may write to.
    written: Region,
    /// Why this way ends early.
    fault: Option<String>,
    /// The sender's last piece has failed, and it takes no more.
    stopped: bool,
    /// The sender wrote to the word what it may not.
    corrupt: bool,
}

/// How far a receive is.
enum Outcome {
    /// Pieces are left, or the sender is at work.
    Going,
    /// Nobody is at work: all is copied, or why not.
    Ended(Option<String>),
    Corrupt,
}

impl Shared {
    /// The sender must take no more.
    fn close(&mut self) {
        for _ in 0..=u16::MAX {
            let closed = State { closed: true, ..self.state };
            match self.word.exchange(self.state, closed) {
                Ok(found) if found == self.state => {
                    self.state = closed;
                    return;
                }
                Ok(found) if found.follows(self.state) => self.state = found,
                _ => break,
            }
        }
        self.corrupt = true;
    }

    /// What the sender may still write to, after `close`; `None` if it is at rest.
    pub(crate) fn written(&mut self) -> Option<Region> {
        match self.word.load() {
            Ok(found) if found.follows(self.state) => self.state = found,
            _ => self.corrupt = true,
        }
        let at_work = self.corrupt || (self.state.busy && !self.stopped);
        at_work.then_some(self.written)
    }

    /// Copies pieces to `buffer`, of which `room` bytes are wanted, until none is left or `step` bytes are copied;
    /// gives how many times it copied.
    fn copy_some(
        &mut self,
        buffer: &Buffer,
        engines: &Engines,
        room: u64,
        step: u64,
    ) -> (Outcome, u64) {
        let (mut copies, mut copied) = (0, 0);
        let most = most_of(step, self.piece);
        while self.fault.is_none() {
            let Some((next, pieces)) = self.state.take_front(most) else { break };
            if copied >= step.max(1) {
                return (Outcome::Going, copies);
            }
            match self.word.exchange(self.state, next) {
                Ok(found) if found == self.state => self.state = next,
                Ok(found) if found.follows(self.state) => {
                    self.state = found;
                    continue;
                }
                _ => return (self.spoilt(), copies),
            }
            let range = bytes_of(&pieces, self.piece, room);
            copied += range.end - range.start;
            copies += 1;
            let moved = buffer.fetch_mapped(engines, &self.mapping, &self.remote, range);
            if let Err(error) = moved.and_then(settled) {
                self.fault = Some(error.to_string());
            }
        }
        if self.fault.is_some() && !self.state.closed {
            self.close();
        }
        let at_work = self.written().is_some();
        match () {
            () if self.corrupt => (Outcome::Corrupt, copies),
            () if at_work => (Outcome::Going, copies),
            () => (Outcome::Ended(self.fault.take()), copies),
        }
    }

    fn spoilt(&mut self) -> Outcome {
        self.corrupt = true;
        Outcome::Corrupt
    }
}

/// Work of an engine on the host, which is done when its call returns.
fn settled(completion: Completion) -> Result<(), EngineError> {
    Ok(completion.wait()?)
}

/// The packed bytes of some pieces of a message of `end` bytes.
fn bytes_of(pieces: &Range<u16>, piece: u64, end: u64) -> Range<u64> {
    let at = |number: u16| u64::from(number).saturating_mul(piece).min(end);
    at(pieces.start)..at(pieces.end)
}

/// Whether the halves of `end` packed bytes lie apart: of a layout, how many, and which bytes they touch. A matrix that is
/// sent by its columns, say, is moved along its rows by whoever moves all of it, and far more slowly by two: of 64 MiB
/// in 4.3 ms, where one takes 3.4 ms.
fn lies_in_order((layout, count, low, span): (&Layout, u64, i64, u64), end: u64) -> bool {
    let middle = Convertor::new(layout, count).and_then(|mut convertor| {
        convertor.seek(end / 2)?;
        let mut run = [Run::default()];
        convertor.iov(&mut run, 1);
        Ok(run[0].displacement)
    });
    let before = middle.ok().and_then(|middle| u64::try_from(middle.checked_sub(low)?).ok());
    before.is_some_and(|before| before >= span / 16)
}

/// Most pieces to take at once, of `step` bytes that one call may copy.
fn most_of(step: u64, piece: u64) -> u16 {
    u16::try_from(step / 4 / piece).unwrap_or(u16::MAX).max(1)
}

impl Core {
    /// Asks the sender to copy a part of what is mapped, and begins; whether that is possible.
    pub(crate) fn share(
        &mut self,
        bml: &mut Bml,
        id: RequestId,
        mapping: &Mapping,
        remote: &Typed,
    ) -> bool {
        let Some((incoming, buffer)) = self.incoming(id) else { return false };
        let (from, end, buffer) = (incoming.from, incoming.room, buffer.clone());
        let host = [buffer.typed().space(), mapping.region().space()];
        let helper = &self.peers[from as usize].helper;
        if !self.config.help
            || end < BYTES_MIN
            || !host.iter().all(|space| space.cpu_accessible())
            || helper.in_use
            || helper.never
        {
            return false;
        }
        let Some((help, layout, word)) = self.help_wanted(bml, id, &buffer) else { return false };
        let Some((_, written)) = buffer.touched() else { return false };
        let Some(pieces) = help.pieces() else { return false };
        let state = State::new(pieces, help.turn);
        if word.reset(state).is_err() {
            return false;
        }
        self.peers[from as usize].helper.in_use = true;
        self.send_long(bml, from, help.wire(&layout));
        let shared = Shared {
            mapping: mapping.clone(),
            remote: remote.clone(),
            word,
            state,
            piece: u64::from(help.piece),
            written,
            fault: None,
            stopped: false,
            corrupt: false,
        };
        if let Some((incoming, _)) = self.incoming(id) {
            incoming.stage = Stage::Shared(Box::new(shared));
        }
        self.share_on(bml, id);
        true
    }

    /// What the sender is to be told, the layout that goes with it, and the word; `None` if it cannot help.
    fn help_wanted(
        &mut self,
        bml: &mut Bml,
        id: RequestId,
        buffer: &Buffer,
    ) -> Option<(Help, Vec<u8>, Word)> {
        let (low, touched) = buffer.touched()?;
        let (incoming, _) = self.incoming(id)?;
        let (from, typed, end) = (incoming.from, buffer.typed(), incoming.room);
        let ours = (typed.layout(), typed.count(), low, touched.len());
        let rts = &incoming.rts;
        let theirs = incoming.layout.as_ref().map(|layout| (layout, rts.count, rts.low, rts.span));
        let sides = [Some(ours), theirs].into_iter().flatten();
        if !sides.into_iter().all(|side| lies_in_order(side, end)) {
            return None;
        }
        let key = map_key(bml, from, touched, false)?;
        let (layout, inline) = self.layout_for(bml, id, buffer)?;
        let (word, word_key, turn) = self.word_of(bml, from)?;
        let (incoming, _) = self.incoming(id)?;
        let piece = incoming.room.div_ceil(PIECES).next_multiple_of(u64::from(PIECE_MIN));
        let help = Help {
            serial: incoming.rts.serial,
            reply: incoming.reply,
            end: incoming.room,
            piece: u32::try_from(piece.max(PIECE)).ok()?,
            turn,
            layout,
            count: buffer.typed().count(),
            low,
            span: touched.len(),
            key,
            word: word_key,
        };
        Some((help, inline, word))
    }

    /// How the sender is told of the receiver's layout: it is short, or the sender's own.
    fn layout_for(
        &mut self,
        bml: &Bml,
        id: RequestId,
        buffer: &Buffer,
    ) -> Option<(HelpLayout, Vec<u8>)> {
        if buffer.typed().as_contiguous().is_some() {
            return Some((HelpLayout::Gapless, Vec::new()));
        }
        let (name, flat) = self.published.publish(buffer.typed().layout())?;
        let (incoming, _) = self.incoming(id)?;
        let (from, theirs) = (incoming.from, incoming.rts.layout_id);
        let room = Core::fragment_max(bml, from)
            .saturating_sub(HELP_BYTES + 2 * RemoteKey::MAX_BYTES)
            .min(INLINE_LAYOUT_MAX);
        if flat.len() <= room {
            return Some((HelpLayout::Named(name), flat.to_vec()));
        }
        if incoming.rts.layout_bytes != flat.len() as u64 {
            return None;
        }
        let layout = incoming.layout.clone()?;
        let most = self.config.bounds.layout_cache_entries;
        let alike = &mut self.peers[from as usize].helper.alike;
        if alike.len() >= most {
            alike.clear();
        }
        let same = || layout.flatten()[..] == flat[..];
        (*alike.entry((theirs, name)).or_insert_with(same))
            .then_some((HelpLayout::Yours, Vec::new()))
    }

    /// The word that is shared with a peer, its key, and the number of the next message over it.
    fn word_of(&mut self, bml: &mut Bml, from: u32) -> Option<(Word, RemoteKey, u32)> {
        let helper = &mut self.peers[from as usize].helper;
        if helper.home.is_none() {
            let made = bml.mapped(Rank(from)).and_then(|(peer, mapped)| {
                let allocation = mapped.allocate(WORD_BYTES).ok()?;
                let key = mapped.key(peer, allocation.region())?;
                Some(Home { allocation, key })
            });
            helper.never = made.is_none();
            helper.home = made;
        }
        let home = helper.home.as_ref()?;
        helper.turn = helper.turn.wrapping_add(1);
        Some((Word::ours(&home.allocation), home.key, helper.turn))
    }

    /// Copies on, at the receivers and at the senders; gives how much was done.
    pub(crate) fn copy_together(&mut self, bml: &mut Bml) -> usize {
        let (receives, sends) =
            (std::mem::take(&mut self.shared), std::mem::take(&mut self.helping));
        for &id in &receives {
            self.share_on(bml, id);
        }
        let mut done = 0;
        for &id in &sends {
            done += self.help_on(bml, id);
        }
        done + receives.len() - self.shared.len().min(receives.len())
    }

    /// Takes pieces and copies them, as many as one call may; ends the receive, or the attempt.
    fn share_on(&mut self, bml: &mut Bml, id: RequestId) {
        let step = self.config.tuning.single_copy_batch_bytes;
        let Some(recv) = self.requests.recv_mut(id) else { return };
        let RecvStage::Incoming(incoming) = &mut recv.stage else { return };
        let (from, room, lost) = (incoming.from, incoming.room, incoming.is_lost());
        let Stage::Shared(shared) = &mut incoming.stage else { return };
        if lost {
            // `poll_leaving` ends it.
            return;
        }
        let (outcome, copied) = shared.copy_some(&recv.buffer, &self.engines, room, step);
        self.counters.tally(Protocol::Mapped).copies += copied;
        match outcome {
            Outcome::Going => self.shared.push(id),
            Outcome::Ended(None) => {
                self.peers[from as usize].helper.in_use = false;
                self.finish_and_tell(bml, id);
            }
            Outcome::Ended(Some(why)) => {
                self.peers[from as usize].helper.in_use = false;
                self.refuse(bml, id, Protocol::Mapped, &why);
            }
            Outcome::Corrupt => {
                let what = "a word that no honest sender leaves, of a message that both copy";
                self.give_up(bml, from, what.to_owned());
            }
        }
    }

    /// The sender of a receive that both copy is lost: it ends when the sender cannot write any more.
    pub(crate) fn end_lost_share(&mut self, id: RequestId) {
        let Some((incoming, _)) = self.incoming(id) else { return };
        let Stage::Shared(shared) = &mut incoming.stage else { return };
        shared.close();
        self.leaving_buffers.push(id);
    }

    /// The receive of ours that `from` helps with and that it knows by this number.
    pub(crate) fn helped(&mut self, from: u32, reply: u64) -> Option<RequestId> {
        let id = *self.serials.get(&reply)?;
        let (incoming, _) = self.incoming(id)?;
        (incoming.from == from && matches!(incoming.stage, Stage::Shared(_))).then_some(id)
    }

    /// The sender's engine has failed at a piece, and the sender is at rest.
    pub(crate) fn help_failed(&mut self, id: RequestId) -> Result<(), String> {
        let Some((incoming, _)) = self.incoming(id) else { return Ok(()) };
        let Stage::Shared(shared) = &mut incoming.stage else { return Ok(()) };
        match shared.word.load() {
            Ok(found) if found.follows(shared.state) && found.busy && !shared.stopped => {
                shared.stopped = true;
                shared.fault = Some("the sender could not copy its part".to_owned());
                Ok(())
            }
            _ => Err("a REFUSE of a sender that was not at work".to_owned()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use gapless_dtype::{Datatype, Primitive};

    fn touched(datatype: &Datatype, end: u64) -> bool {
        let layout = datatype.commit().unwrap();
        let convertor = Convertor::new(&layout, 1).unwrap();
        let (low, high) = convertor.bounds().unwrap();
        lies_in_order((&layout, 1, low, u64::try_from(high - low).unwrap()), end)
    }

    #[test]
    fn what_lies_in_order_is_told_from_what_is_transposed() {
        let (double, n) = (Datatype::from(Primitive::Double), 128u64);
        let side = i64::try_from(n).unwrap();
        let lens: Vec<u64> = (0..n).map(|row| n - row).collect();
        let at: Vec<i64> = (0..side).map(|row| row * (side + 1)).collect();
        let backwards: Vec<i64> = (0..side).map(|row| (side - row) * side).collect();
        let rows = Datatype::vector(n, n, 2 * side, &double).unwrap();
        let triangle = Datatype::indexed(&lens, &at, &double).unwrap();
        let upwards = Datatype::indexed_block(n, &backwards, &double).unwrap();
        for (what, layout) in [("rows", &rows), ("triangle", &triangle), ("upwards", &upwards)] {
            assert!(touched(layout, layout.commit().unwrap().size()), "{what}");
        }
        let column = Datatype::vector(n, 1, side, &double).unwrap();
        let narrow = Datatype::resized(0, 8, &column).unwrap();
        let transposed = Datatype::contiguous(n, &narrow).unwrap();
        assert!(!touched(&transposed, 8 * n * n));
    }

    #[test]
    fn pieces_cover_all_bytes() {
        for (piece, end) in [(4096, 1), (4096, 4096), (4096, 4097), (1 << 20, u64::MAX)] {
            let pieces = u16::try_from(end.div_ceil(piece)).unwrap_or(u16::MAX);
            let last = bytes_of(&(pieces - 1..pieces), piece, end);
            assert!(pieces == u16::MAX || last.end == end, "{end}");
            assert_eq!(bytes_of(&(0..1), piece, end), 0..piece.min(end));
        }
        assert_eq!(
            [most_of(4 << 20, 32 << 10), most_of(1, 4096), most_of(u64::MAX, 1)],
            [32, 1, u16::MAX]
        );
    }
}
