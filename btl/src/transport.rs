//! The contract itself.

use crate::{
    Address, AmTag, Limits, LinkError, Mapped, PeerId, Rdma, ReserveError, Sink, Slot, Token,
    Unacknowledged, ZeroCopyMessage,
};
use gapless_mem::Device;
use std::os::fd::RawFd;
use std::sync::Arc;

/// Most bytes of a [`Short`] message.
pub const SHORT_BYTES: usize = 1120;

/// In so many polls in a row a transport looks at everything, also at what it looks at only now and then.
pub const POLLS_PER_LOOK: u32 = 16;

/// If nothing more is sent, and the peer polls, fewer bytes than this stay [outstanding](Btl::outstanding).
pub const LAG_BYTES: usize = 64 << 10;

/// A message that is short enough to be passed by value, in words: the most frequent messages never need a slot, a
/// fragment or an event.
#[derive(Clone, Copy, Debug)]
pub struct Short<'m> {
    words: &'m [u64],
    len: usize,
}

impl<'m> Short<'m> {
    /// A message of `len` bytes, which lie in `words` as in memory; bytes after them are ignored.
    ///
    /// # Panics
    /// There are not as many words, or more bytes than [`SHORT_BYTES`].
    #[must_use]
    #[inline]
    pub fn new(words: &'m [u64], len: usize) -> Short<'m> {
        assert!(len <= SHORT_BYTES && len <= 8 * words.len(), "{len} bytes in words");
        Short { words, len }
    }

    /// The words: at least as many as the message fills.
    #[must_use]
    #[inline]
    pub fn words(&self) -> &'m [u64] {
        self.words
    }

    /// Length in bytes.
    #[must_use]
    #[inline]
    pub fn len(&self) -> usize {
        self.len
    }

    /// Whether it has no bytes.
    #[must_use]
    #[inline]
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }
}

/// The result of [`Btl::send_zero_copy`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ZeroCopyResult {
    /// It is sent.
    Sent,
    /// There is no room now: poll and retry, or send it with a slot.
    Full,
    /// Messages to this peer must be sent with slots.
    Never,
}

/// A transport. The rules that every implementation keeps are listed at the [crate root](crate); what its
/// `Drop` owes to peers is one of them.
pub trait Btl: Send {
    /// What it promises.
    fn limits(&self) -> &Limits;

    /// How peers reach this end. The caller publishes it; peers may connect from the moment this returns.
    fn address(&self) -> Address;

    /// Starts a link to the process behind `peer`, and names it. Does not wait for the peer; asking again with the
    /// same address gives the same name. The own address is a peer like any other if the transport can reach its own
    /// process, otherwise [`LinkError::Unreachable`].
    ///
    /// # Errors
    /// The address is not of this transport, or the peer cannot be reached.
    fn connect(&mut self, peer: &Address) -> Result<PeerId, LinkError>;

    /// As [`connect`](Btl::connect), but where the transport can put that off, no link is made yet: a peer costs
    /// a row in a table until somebody needs it. A link is made by the first [`reserve`](Btl::reserve) for the
    /// peer, which says `Full` meanwhile, by `connect` with the same address, or by the peer, whose call is
    /// accepted. Without a link the peer's death goes unnoticed. By default the same as `connect`.
    ///
    /// # Errors
    /// As [`connect`](Btl::connect), as far as that is known without asking the peer.
    fn introduce(&mut self, peer: &Address) -> Result<PeerId, LinkError> {
        self.connect(peer)
    }

    /// Whether a link to `peer` was asked for, by either end: `false` only for one that was
    /// [introduced](Btl::introduce) and not needed since. Once the peer's `reserve` for this end has succeeded,
    /// this is `true`: so what such a peer has sent is known to be on its way.
    fn has_met(&self, peer: PeerId) -> bool {
        let _ = peer;
        true
    }

    /// The processes that have called since this was last asked, and wait because they were not
    /// [introduced](Btl::introduce): for each the number that it was made with. It was proved as far as the transport
    /// proves anything. `None`, as by default, if the transport does not tell: then all peers that may call must be
    /// introduced. A poll, or the descriptor of [`arm`](Btl::arm), comes before each new one.
    fn callers(&mut self) -> Option<Vec<u32>> {
        None
    }

    /// Room for a message of `len` bytes to `to`.
    ///
    /// # Errors
    /// [`ReserveError::Full`]: poll and retry. Too long, or the link is gone.
    fn reserve(&mut self, to: PeerId, len: usize) -> Result<Slot, ReserveError>;

    /// Sends what the slot holds. Consumes the slot; messages to one peer go in the order of
    /// `send`. Unless `done` is [`Token::NONE`], one [`Event::Sent`](crate::Event::Sent) follows.
    ///
    /// # Panics
    /// May panic if the slot is another transport's.
    fn send(&mut self, slot: Slot, tag: AmTag, done: Token);

    /// Makes progress and reports to `sink`: messages are offered first; what is refused, and all else, is given as
    /// events, as far as there is room. Never blocks, bounded work. Returns the number of messages taken plus that of
    /// events given.
    ///
    /// What is looked at only now and then, as sockets for new links, is looked at once in [`POLLS_PER_LOOK`] polls of
    /// all at least, if it is due: so a caller that polls seldom polls that often in a row.
    ///
    /// With `only`, looks at the next message of this peer alone: at most that is offered, or given if there is room,
    /// and all else stays as it is. For whoever waits for just that message: it need not make progress, so a poll of
    /// all is needed now and then. A transport that cannot look at one peer alone does nothing and gives 0.
    fn poll(&mut self, only: Option<PeerId>, sink: &mut dyn Sink) -> usize;

    /// Sends a short message if that can be done at once, as `reserve`, writing and `send` with
    /// [`Token::NONE`] would; `false`, with nothing sent, if not: `reserve` says why.
    fn send_short(&mut self, to: PeerId, tag: AmTag, message: Short<'_>) -> bool {
        let Ok(mut slot) = self.reserve(to, message.len()) else { return false };
        let mut bytes = [0; SHORT_BYTES];
        for (place, word) in bytes.chunks_exact_mut(8).zip(message.words()) {
            place.copy_from_slice(&word.to_ne_bytes());
        }
        let written = slot.write(0, &bytes[..message.len()]).is_ok();
        if written {
            self.send(slot, tag, Token::NONE);
        }
        written
    }

    /// Sends a message straight out of the caller's memory, which it needs for the time of this call alone, as
    /// `reserve`, writing and `send` with [`Token::NONE`] would, and in order with these. Unless it is
    /// [`ZeroCopyResult::Sent`], nothing has happened. For messages that take longer to copy than to describe. By
    /// default it never does.
    fn send_zero_copy(
        &mut self,
        to: PeerId,
        tag: AmTag,
        message: &ZeroCopyMessage<'_>,
    ) -> ZeroCopyResult {
        let _ = (to, tag, message);
        ZeroCopyResult::Never
    }

    /// Whether [`send_zero_copy`](Btl::send_zero_copy) to this peer usually saves a copy, and long messages from it are
    /// put straight into their [targets](Sink::receive_target). Callers then pack into memory of their own, not into
    /// slots. `false` by default.
    fn has_zero_copy(&self, to: PeerId) -> bool {
        let _ = to;
        false
    }

    /// Whether a [`poll`](Btl::poll) now would find nothing and change nothing, where that can be told by
    /// a few loads; `false` where it cannot. Whoever waits asks this between polls. Deaths and new links, which
    /// transports look for by the clock, do not count: poll now and then.
    fn is_quiet(&self) -> bool {
        false
    }

    /// Prepares to block: from now on, anything that would make [`poll`](Btl::poll) report something makes the
    /// returned descriptor readable, until a `poll` has reported something. The caller arms, polls once more
    /// (something may have come in between; a `poll` that reports nothing leaves it armed), and then blocks on the
    /// descriptor. Arming again is cheap, gives the same descriptor, and makes it unreadable unless something waits.
    /// The descriptor stays open while the transport lives. `None`: this transport must be polled by the clock.
    fn arm(&mut self) -> Option<RawFd> {
        None
    }

    /// Makes a device known, at the first message that needs it. Registers own and mapped segments with it, later
    /// ones too, so that its engines can pack straight into slots (whose regions then lie in
    /// [`Space::Pinned`](gapless_mem::Space::Pinned)), and lets [`Mapped`] export and import its memory. Segments are
    /// unregistered before they are unmapped. Asking again is cheap. By default it does nothing: slots stay ordinary
    /// host memory, which engines reach by staging. The same holds for devices that cannot register any.
    ///
    /// # Errors
    /// The device refused a segment: its messages will be staged. If its memory could be mapped before, it still can.
    fn attach(&mut self, device: &Arc<dyn Device>) -> Result<(), LinkError> {
        let _ = device;
        Ok(())
    }

    /// Undoes [`attach`](Btl::attach): unregisters all memory from the device, and lets go of it. Memory that no other
    /// device knows is ordinary host memory from then on. Gives `false`, and does nothing, while work of the device may
    /// be in flight ([`Device::finish`]): ask again later. By default there is nothing to undo.
    fn detach(&mut self, device: &Arc<dyn Device>) -> bool {
        let _ = device;
        true
    }

    /// Whether it can [retain](Btl::retain) what it sends: always the same answer, and the same at all ends. By default
    /// it cannot.
    fn retains(&self) -> bool {
        false
    }

    /// Has what is sent to `peer` retained until the other end is known to have it in full, so that it can be sent
    /// over another transport if the link ends. Both ends call this before anything is sent; calling it again is
    /// harmless. It does nothing if the transport cannot do that.
    fn retain(&mut self, peer: PeerId) {
        let _ = peer;
    }

    /// What was sent to a peer that is lost, and may not have arrived: in the order of [`send`](Btl::send), each once.
    /// Of a message with a token that is among them, no [`Event::Sent`](crate::Event::Sent) has come or will. To be
    /// called once [`Event::Lost`](crate::Event::Lost) has come, and again if more was sent since. Nothing unless it
    /// is [retained](Btl::retain).
    fn unacknowledged(&mut self, peer: PeerId) -> Vec<Unacknowledged> {
        let _ = peer;
        Vec::new()
    }

    /// How many bytes were sent to a peer and are still [retained](Btl::retain), or are
    /// [unacknowledged](Btl::unacknowledged): what is not known to be there. Receipt is known in the order of
    /// [`send`](Btl::send). Rails are measured by it. If nothing else is sent, less than
    /// [`LAG_BYTES`] is left as soon as the peer has polled.
    fn outstanding(&self, peer: PeerId) -> u64 {
        let _ = peer;
        0
    }

    /// One-sided operations, if the wire has them: always the same ability. Callers that grant it memory do not
    /// accept another one ([`Abilities`](crate::Abilities)).
    fn rdma(&mut self) -> Option<&mut dyn Rdma> {
        None
    }

    /// Mapping a peer's memory, if the wire can: likewise.
    fn mapped(&mut self) -> Option<&mut dyn Mapped> {
        None
    }
}

impl<B: Btl + ?Sized> Btl for Box<B> {
    crate::delegate!(self => (**self);
        limits address connect introduce has_met callers reserve send poll send_short send_zero_copy has_zero_copy is_quiet arm
        attach detach retains retain unacknowledged outstanding rdma mapped
    );
}
