//! The contract itself.

use crate::{
    Address, AmTag, Events, Limits, LinkError, Mapped, PeerId, Rdma, ReserveError, Slot, Token,
};
use gapless_mem::Device;
use std::os::fd::RawFd;
use std::sync::Arc;

/// A transport. The rules that every implementation keeps are listed at the [crate root](crate).
pub trait Btl: Send {
    /// What it promises.
    fn limits(&self) -> &Limits;

    /// How peers reach this end. Published by the caller; the transport is ready to be met from
    /// the moment this returns.
    fn address(&self) -> Address;

    /// Starts a link to the process behind `peer`, and names it. Does not wait for the peer; asking
    /// again with the same address gives the same name. The own address is a peer like any other
    /// where the transport can reach its own process, else [`LinkError::Unreachable`].
    ///
    /// # Errors
    /// The address is not of this transport, or the peer cannot be reached.
    fn connect(&mut self, peer: &Address) -> Result<PeerId, LinkError>;

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

    /// Makes progress and reports what happened, up to what `events` has room for. Never blocks,
    /// bounded work. Gives how many events were added.
    fn poll(&mut self, events: &mut Events) -> usize;

    /// Prepares to block: from now on, whatever would make [`poll`](Btl::poll) report something
    /// makes the returned descriptor readable, until a `poll` has reported something. The caller
    /// arms, polls once more (something may have come in between; a `poll` that reports nothing
    /// leaves it armed), and then blocks on the descriptor. Arming again is cheap, gives the same
    /// descriptor, and makes it unreadable unless something waits. The descriptor stays open while
    /// the transport lives. `None`: this transport must be polled by the clock.
    fn arm(&mut self) -> Option<RawFd> {
        None
    }

    /// Makes a device known, at the first message that involves it: registers own and mapped
    /// segments with it, those to come too, so that its engines can pack straight into slots (whose
    /// regions then lie in [`Space::Pinned`](gapless_mem::Space::Pinned)), and lets
    /// [`Mapped`] export and import its memory. Segments are unregistered before they are unmapped.
    /// Asking again is cheap. By default nothing to do: slots stay ordinary host memory, which
    /// engines reach by staging; so it is with devices that cannot register any.
    ///
    /// # Errors
    /// The device refused a segment: its messages will be staged. Its memory can be mapped
    /// nevertheless, where it could before.
    fn attach(&mut self, device: &Arc<dyn Device>) -> Result<(), LinkError> {
        let _ = device;
        Ok(())
    }

    /// Moving bytes without the peer's help, where the wire can.
    fn rdma(&mut self) -> Option<&mut dyn Rdma> {
        None
    }

    /// Mapping a peer's memory, where the wire can.
    fn mapped(&mut self) -> Option<&mut dyn Mapped> {
        None
    }
}

impl<B: Btl + ?Sized> Btl for Box<B> {
    fn limits(&self) -> &Limits {
        (**self).limits()
    }
    fn address(&self) -> Address {
        (**self).address()
    }
    fn connect(&mut self, peer: &Address) -> Result<PeerId, LinkError> {
        (**self).connect(peer)
    }
    fn reserve(&mut self, to: PeerId, len: usize) -> Result<Slot, ReserveError> {
        (**self).reserve(to, len)
    }
    fn send(&mut self, slot: Slot, tag: AmTag, done: Token) {
        (**self).send(slot, tag, done);
    }
    fn poll(&mut self, events: &mut Events) -> usize {
        (**self).poll(events)
    }
    fn arm(&mut self) -> Option<RawFd> {
        (**self).arm()
    }
    fn attach(&mut self, device: &Arc<dyn Device>) -> Result<(), LinkError> {
        (**self).attach(device)
    }
    fn rdma(&mut self) -> Option<&mut dyn Rdma> {
        (**self).rdma()
    }
    fn mapped(&mut self) -> Option<&mut dyn Mapped> {
        (**self).mapped()
    }
}
