//! A peer: what is known of it, and how far the link to it is.

use crate::address::TcpAddress;
use crate::burst::Burst;
use crate::call::OutgoingCall;
use crate::config::TcpConfig;
use crate::connection::Connection;
use crate::inbound::Inbound;
use crate::msg_zerocopy::{MsgZerocopy, ZerocopyManner};
use crate::outbound::Outbound;
use crate::proof::Digest;
use crate::silence::Silence;
use crate::watch::Interest;
use gapless_btl::{LinkError, Unacknowledged};
use gapless_mem::{Device, DeviceError};
use std::sync::Arc;

/// One peer.
pub(crate) struct TcpLink {
    pub(crate) address: TcpAddress,
    /// The address's hash.
    pub(crate) digest: Digest,
    pub(crate) state: LinkState,
    /// A link stands, or has stood.
    pub(crate) met: bool,
    /// A proved call of the peer, which is needed only if ours, proved too, fails: see [`crate::meeting`].
    pub(crate) spare: Option<Connection>,
    /// What is sent is retained until the peer has it.
    pub(crate) retains: bool,
    /// Of a link that is lost: what the peer may not have.
    pub(crate) unacknowledged: Vec<Unacknowledged>,
}

pub(crate) enum LinkState {
    /// Introduced, and nobody has called yet.
    Known,
    /// We are calling.
    Calling(Box<OutgoingCall>),
    /// The link stands.
    Up(Box<Up>),
    Lost(LinkError),
}

/// A link that stands.
pub(crate) struct Up {
    pub(crate) connection: Connection,
    pub(crate) inbound: Inbound,
    pub(crate) outbound: Outbound,
    pub(crate) silence: Silence,
    /// What epoll waits for.
    pub(crate) interest: Interest,
    /// The peer sends no more than has come: that is read to its end, whoever holds the buffers.
    pub(crate) closing: bool,
    /// Nothing can be written any more, for this reason.
    pub(crate) broken: Option<LinkError>,
    /// There may be messages that no event of the socket will tell of; the link is in the list of those.
    pub(crate) again: bool,
    /// All buffers are with the receiver.
    pub(crate) starved: bool,
    /// The poll that has last given a message as an event.
    pub(crate) given: u32,
    /// The poll after which a message was last sent.
    pub(crate) spoke: Option<u32>,
    pub(crate) burst: Burst,
    /// So many messages wait in the system for others, or for the next poll.
    pub(crate) waiting: u32,
}

impl TcpLink {
    pub(crate) fn new(address: TcpAddress) -> TcpLink {
        let digest = address.digest();
        let (state, unacknowledged) = (LinkState::Known, Vec::new());
        TcpLink { address, digest, state, met: false, spare: None, retains: false, unacknowledged }
    }

    pub(crate) fn up(&mut self) -> Option<&mut Up> {
        match &mut self.state {
            LinkState::Up(up) => Some(up),
            _ => None,
        }
    }
}

impl Up {
    /// Over this connection.
    pub(crate) fn new(
        connection: Connection,
        silence: Silence,
        config: &TcpConfig,
        retains: bool,
        burst: Burst,
        msg_zerocopy: ZerocopyManner,
    ) -> Up {
        let msg_zerocopy = MsgZerocopy::new(&connection, msg_zerocopy, config.buffers);
        Up {
            connection,
            inbound: Inbound::new(config),
            outbound: Outbound::new(config, retains, msg_zerocopy),
            silence,
            interest: Interest::READING,
            closing: false,
            broken: None,
            again: false,
            starved: false,
            given: 0,
            spoke: None,
            burst,
            waiting: 0,
        }
    }

    /// Has a device know the buffers of long messages.
    pub(crate) fn attach(&self, device: &Arc<dyn Device>) -> Result<(), DeviceError> {
        self.outbound.attach(device)?;
        self.inbound.attach(device)
    }

    /// Has it forget them.
    ///
    /// # Safety
    /// As for [`HeapPool::detach`](gapless_btl::pool::HeapPool::detach).
    #[allow(unsafe_code, reason = "hands on what its caller has found out of a device")]
    pub(crate) unsafe fn detach(&self, device: &Arc<dyn Device>) {
        // SAFETY: the caller's promise.
        unsafe { self.outbound.detach(device) };
        // SAFETY: as above.
        unsafe { self.inbound.detach(device) };
    }

    /// What epoll should wait for.
    pub(crate) fn wanted(&self) -> Interest {
        let writing = !self.outbound.is_empty() && self.broken.is_none();
        Interest { reading: !self.starved, writing }
    }
}
