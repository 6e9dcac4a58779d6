//! One peer: both lanes, both sockets, and how far the acquaintance has come.
//!
//! ```text
//! Known ── somebody needs the link, or the peer calls
//!    │
//!    ▼
//! Meeting ── our greeting sent, theirs received ──► Up ── end-of-file, or rules broken ──► Dying
//!    │                                                                                       │
//!    └──────────────── end-of-file ──────────────► Dying ── ring drained, Lost reported ──► Lost
//! ```

use crate::address::{Hello, SmAddress};
use crate::arm::Sleeper;
use crate::export_tracking::{DepartedPeer, ImportGuard, Owed};
use crate::geometry::Geometry;
use crate::inbound::Inbound;
use crate::lane::Lane;
use crate::outbound::Outbound;
use crate::segment::Segment;
use crate::socket::{self, Socket};
use crate::sync::Fences;
use crate::waker::Waker;
use gapless_btl::LinkError;
use rustix::fd::OwnedFd;
use std::collections::{BTreeSet, VecDeque};
use std::sync::Arc;

/// How far it has come.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum LinkState {
    /// Nobody has needed it: it has neither sockets nor memory.
    Known,
    /// One of the greetings is missing.
    Meeting,
    /// Messages flow.
    Up,
    /// It is over, but not everything that arrived has been delivered.
    Dying(LinkError),
    /// It is over and has been reported.
    Lost(LinkError),
}

/// One peer.
pub(crate) struct SmLink {
    pub(crate) address: SmAddress,
    pub(crate) state: LinkState,
    /// The sending half; comes with the first call, and is gone with the link.
    pub(crate) outbound: Option<Outbound>,
    /// Our lane's descriptor, until the peer has been greeted with it.
    file: Option<OwnedFd>,
    /// Our socket to the peer's listener.
    pub(crate) outgoing: Option<Arc<Socket>>,
    /// The same, held by what uses the peer's memory as well.
    pub(crate) guard: Option<Arc<ImportGuard>>,
    /// Where a guard leaves what finds no room.
    owed: Arc<Owed>,
    /// The peer's socket to our listener, once it has greeted.
    pub(crate) incoming: Option<Socket>,
    pub(crate) inbound: Option<Inbound>,
    pub(crate) waker: Option<Arc<Waker>>,
    /// The number, in our namespace, of the process that answers where the peer is to be met; 0 if it has
    /// none. Known once the socket is there.
    pub(crate) answers: i32,
    /// The peer's process number in our namespace; 0 if unknown.
    pub(crate) pid: i32,
    /// The process itself, once memory was shared with it.
    pub(crate) process: Option<OwnedFd>,
    /// What is left when the link is over, as long as the peer may use memory of ours.
    pub(crate) departed: Option<DepartedPeer>,
    /// Whether its memory can be reached by single copy; `None` until probed.
    pub(crate) reaches: Option<bool>,
    /// Our word on our sleep, in our lane.
    pub(crate) sleeper: Sleeper,
    /// A reservation failed and none has succeeded since.
    pub(crate) lacks_room: bool,
    /// Our memory that the peer has descriptors of, by number.
    pub(crate) shared: BTreeSet<u64>,
    /// Memory of ours that the peer was told to let go of, and has not yet.
    pub(crate) leaving: BTreeSet<u64>,
    /// Packets that found the socket full.
    pub(crate) unsent: VecDeque<Box<[u8]>>,
}

impl SmLink {
    pub(crate) fn new(address: SmAddress, owed: &Arc<Owed>) -> SmLink {
        SmLink {
            address,
            state: LinkState::Known,
            outbound: None,
            file: None,
            outgoing: None,
            guard: None,
            owed: Arc::clone(owed),
            incoming: None,
            inbound: None,
            waker: None,
            answers: 0,
            pid: 0,
            process: None,
            departed: None,
            reaches: None,
            sleeper: Sleeper::default(),
            lacks_room: false,
            shared: BTreeSet::new(),
            leaving: BTreeSet::new(),
            unsent: VecDeque::new(),
        }
    }

    /// Makes the sending half.
    ///
    /// # Errors
    /// The system has no memory, or no descriptor.
    pub(crate) fn open(&mut self, geometry: Geometry) -> Result<(), LinkError> {
        let (lane, file) = Lane::create(geometry)?;
        self.outbound = Some(Outbound::new(Arc::new(lane))?);
        self.file = Some(file);
        Ok(())
    }

    /// Calls the peer and greets it, as far as that goes without waiting. Gives whether a socket
    /// was opened by this call. `own` is the caller's address.
    ///
    /// # Errors
    /// The peer is gone, or another process answers in its place; the system refused.
    pub(crate) fn dial(&mut self, own: &SmAddress, hello: &Hello) -> Result<bool, LinkError> {
        let mut opened = false;
        if self.outgoing.is_none() {
            let Some(socket) = socket::call(&self.address.meeting_place())? else {
                return Ok(false);
            };
            // Before a word is said: the greeting tells secrets.
            let answers = crate::credentials::check_peer(&socket)?;
            if !self.address.may_have(own, answers) {
                let reason = format!("process {answers} answers in its place");
                return Err(LinkError::PeerGone { reason });
            }
            self.answers = answers;
            let socket = Arc::new(socket);
            self.guard = Some(ImportGuard::new(&socket, &self.owed));
            self.outgoing = Some(socket);
            opened = true;
        }
        if let (Some(socket), Some(file)) = (&self.outgoing, &self.file)
            && socket::send(socket, hello.packet().as_ref(), Some(file))?
        {
            self.file = None;
        }
        Ok(opened)
    }

    /// Whether the peer has our greeting, as far as we are concerned.
    pub(crate) fn has_greeted(&self) -> bool {
        self.file.is_none()
    }

    /// Comes up if nothing is missing any more. Gives whether it did.
    pub(crate) fn try_up(&mut self) -> bool {
        let ready =
            self.state == LinkState::Meeting && self.has_greeted() && self.inbound.is_some();
        if ready {
            self.state = LinkState::Up;
        }
        ready
    }

    /// Whether messages can be sent.
    ///
    /// # Errors
    /// The link is gone.
    pub(crate) fn is_up(&self) -> Result<bool, LinkError> {
        match &self.state {
            LinkState::Up => Ok(true),
            LinkState::Known | LinkState::Meeting => Ok(false),
            LinkState::Dying(error) | LinkState::Lost(error) => Err(error.clone()),
        }
    }

    /// Whether it is ending or has ended.
    pub(crate) fn is_over(&self) -> bool {
        matches!(self.state, LinkState::Dying(_) | LinkState::Lost(_))
    }

    /// How sends and sleeps are ordered between the two.
    pub(crate) fn fences(&self) -> Fences {
        self.waker.as_ref().map_or(Fences::Symmetric, |waker| waker.fences)
    }

    /// The mappings that its slots and fragments lie in.
    pub(crate) fn segments(&self) -> impl Iterator<Item = &Segment> {
        let out = self.outbound.iter().flat_map(Outbound::segments);
        out.chain(self.inbound.iter().flat_map(Inbound::segments))
    }

    /// Sends what was kept back. Gives whether all of it has gone.
    pub(crate) fn flush(&mut self) -> bool {
        while let (Some(packet), Some(socket)) = (self.unsent.front(), &self.outgoing) {
            match socket::send(socket, packet, None) {
                Ok(true) | Err(_) => self.unsent.pop_front(),
                Ok(false) => return false,
            };
        }
        true
    }

    /// Lets go of everything but the address, and of what tells whether the peer still uses memory of ours. The
    /// peer sees an end even if a parked fragment or a mapping still holds a socket.
    pub(crate) fn bury(&mut self, error: LinkError) {
        self.hang_up();
        self.state = LinkState::Lost(error);
        self.outbound = None;
        self.inbound = None;
        self.waker = None;
        self.outgoing = None;
        self.guard = None;
        self.file = None;
        self.reaches = Some(false);
        self.unsent = VecDeque::new();
        self.track_departed();
    }

    /// Tells the peer that it is over. Our own socket to it ends with its guard.
    pub(crate) fn hang_up(&self) {
        if let Some(socket) = &self.incoming {
            socket::fall_silent(socket);
        }
    }
}
