//! A call to one place of a peer: from the first packet to a connection that both ends have proved.
//!
//! If somebody hangs up before the link stands, the place is tried again a few times: the peer may have been out of
//! room, or have dropped our call for its own; or somebody else listens there, who is not the one that we look for.

use crate::address::TcpAddress;
use crate::connection::Connection;
use crate::proof::{ANSWER_BYTES, Hello, Keys, Purpose, Talk};
use crate::socket::{self, Socket};
use crate::tls::{Handshake, Progress, Refused};
use crate::watch::{Interest, Watch, Watched};
use crate::wire::{HEADER_BYTES, Header};
use gapless_btl::LinkError;
use rustix::io::Errno;
use std::io::{IoSlice, IoSliceMut};
use std::net::SocketAddr;
use std::time::{Duration, Instant};

/// Attempts at one place, when its listener hangs up or this process is out of descriptors.
const TRIES: u32 = 12;
/// The pause after the first of them; it doubles.
const PAUSE_FIRST: Duration = Duration::from_millis(10);
/// Why a place is tried again.
const HANGS_UP: &str = "hangs up before the link stands";
/// The longest pause.
const PAUSE_MAX: Duration = Duration::from_millis(500);

enum AttemptStage {
    /// Nothing was begun at the present place.
    Fresh,
    Pausing {
        until: Instant,
    },
    Connecting {
        socket: Socket,
        since: Instant,
    },
    /// The hello has left.
    Greeting {
        socket: Socket,
        talk: Box<Talk>,
        answer: [u8; ANSWER_BYTES],
        got: usize,
    },
    /// The proof has left, and the keys of the connection are being made.
    Securing {
        socket: Socket,
        handshake: Box<Handshake>,
    },
    /// The proof has left; the welcome is due.
    Proving {
        connection: Connection,
        welcome: [u8; HEADER_BYTES],
        got: usize,
    },
    /// The place was given up, for this reason.
    Over(String, Blame),
}

/// What a call needs of its transport.
pub(crate) struct Caller<'t> {
    pub(crate) watch: &'t Watch,
    pub(crate) keys: &'t Keys,
    pub(crate) own: &'t TcpAddress,
    pub(crate) peer: &'t TcpAddress,
    /// The peer's number here.
    pub(crate) id: u32,
    /// How long a host may be silent.
    pub(crate) patience: Duration,
    pub(crate) now: Instant,
}

/// How an attempt goes.
#[derive(Debug)]
pub(crate) enum AttemptState {
    Going,
    /// Somebody was there and hung up: it is tried again.
    Pausing,
    /// The link stands, over this connection.
    Made(Connection),
    /// The place is given up.
    Over,
}

/// Whom a failure speaks against.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Blame {
    /// The peer's host says that nobody listens there.
    Gone,
    /// The peer may live although it was not found: its host did not answer, or somebody else did, or this host has no
    /// way there.
    Unclear,
    /// This process: it has no descriptors or memory.
    Ours,
    /// The peer has proved itself, and then broken the rules.
    Corrupt,
}

/// A call to one place.
pub(crate) struct Attempt {
    place: SocketAddr,
    tries: u32,
    stage: AttemptStage,
}

impl Attempt {
    pub(crate) fn new(place: SocketAddr) -> Attempt {
        Attempt { place, tries: 0, stage: AttemptStage::Fresh }
    }

    /// Why the place was given up, if it was, and whom that speaks against.
    pub(crate) fn failure(&self) -> Option<(&str, Blame)> {
        match &self.stage {
            AttemptStage::Over(why, blame) => Some((why, *blame)),
            _ => None,
        }
    }

    /// Whether our proof has left: the peer may have welcomed us.
    pub(crate) fn is_proving(&self) -> bool {
        matches!(self.stage, AttemptStage::Securing { .. } | AttemptStage::Proving { .. })
    }

    /// Goes on as far as it can.
    pub(crate) fn go_on(&mut self, caller: &Caller<'_>) -> AttemptState {
        loop {
            let step = match std::mem::replace(&mut self.stage, AttemptStage::Fresh) {
                AttemptStage::Over(why, blame) => {
                    self.stage = AttemptStage::Over(why, blame);
                    return AttemptState::Over;
                }
                AttemptStage::Pausing { until } if caller.now < until => {
                    self.stage = AttemptStage::Pausing { until };
                    return AttemptState::Pausing;
                }
                AttemptStage::Fresh | AttemptStage::Pausing { .. } => self.begin(caller),
                AttemptStage::Connecting { socket, since } => self.connect(socket, since, caller),
                AttemptStage::Greeting { socket, talk, answer, got } => {
                    self.greet(socket, talk, answer, got, caller)
                }
                AttemptStage::Securing { socket, handshake } => {
                    self.secure(socket, handshake, caller)
                }
                AttemptStage::Proving { connection, welcome, got } => {
                    match self.prove(connection, welcome, got, caller) {
                        AttemptStep::Made(connection) => return AttemptState::Made(connection),
                        step => step,
                    }
                }
            };
            if let AttemptStep::Wait = step {
                return match self.stage {
                    AttemptStage::Over(..) => AttemptState::Over,
                    AttemptStage::Pausing { .. } => AttemptState::Pausing,
                    _ => AttemptState::Going,
                };
            }
        }
    }

    fn begin(&mut self, caller: &Caller<'_>) -> AttemptStep {
        let socket = match Socket::call(self.place, caller.patience) {
            Ok(socket) => socket,
            Err(error) => return self.fail(error, caller),
        };
        if caller.watch.add(&socket, Watched::OutgoingCall(caller.id), Interest::WRITING).is_err() {
            return self.fail(Errno::NOMEM, caller);
        }
        self.stage = AttemptStage::Connecting { socket, since: caller.now };
        AttemptStep::On
    }

    fn connect(&mut self, socket: Socket, since: Instant, caller: &Caller<'_>) -> AttemptStep {
        match socket.connected() {
            Ok(true) => {}
            Ok(false) if caller.now.duration_since(since) < caller.patience => {
                self.stage = AttemptStage::Connecting { socket, since };
                return AttemptStep::Wait;
            }
            Ok(false) => return self.fail(Errno::TIMEDOUT, caller),
            Err(error) => return self.fail(error, caller),
        }
        let Ok(hello) = hello(Purpose::Call, caller.own, caller.peer) else {
            return self.fail(Errno::AGAIN, caller);
        };
        let hello = caller.keys.say(&hello);
        // There is room for it in a fresh connection.
        match socket.write(&[IoSlice::new(&hello)]) {
            Ok(written) if written == hello.len() => {}
            Ok(_) => return self.again("has no room for a greeting", Blame::Unclear, caller),
            Err(error) => return self.fail(error, caller),
        }
        caller.watch.change(&socket, Watched::OutgoingCall(caller.id), Interest::READING);
        let talk = Box::new(Talk { hello, addresses: [caller.own.digest(), caller.peer.digest()] });
        self.stage = AttemptStage::Greeting { socket, talk, answer: [0; ANSWER_BYTES], got: 0 };
        AttemptStep::On
    }

    fn greet(
        &mut self,
        socket: Socket,
        talk: Box<Talk>,
        mut answer: [u8; ANSWER_BYTES],
        mut got: usize,
        caller: &Caller<'_>,
    ) -> AttemptStep {
        match self.hear(&socket, &mut answer[got..], caller) {
            Ok(count) => got += count,
            Err(step) => return step,
        }
        if got < ANSWER_BYTES {
            self.stage = AttemptStage::Greeting { socket, talk, answer, got };
            return AttemptStep::Wait;
        }
        if !caller.keys.accepts(&talk, &answer) {
            // Whoever listens there does not know the secret: asking again is of no use.
            let why = "somebody listens there who does not know the job's secret";
            return self.give_up(why, Blame::Unclear);
        }
        let proof = caller.keys.prove(&talk, &answer);
        match socket.write(&[IoSlice::new(&proof)]) {
            Ok(written) if written == proof.len() => {}
            Ok(_) => return self.again("has no room for a proof", Blame::Unclear, caller),
            Err(error) => return self.fail(error, caller),
        }
        if !caller.own.encrypts {
            return self.await_welcome(Connection::bare(socket));
        }
        match Handshake::call(caller.keys, caller.own, caller.peer) {
            Ok(handshake) => {
                self.stage = AttemptStage::Securing { socket, handshake: Box::new(handshake) };
                AttemptStep::On
            }
            Err(why) => self.give_up(&why, Blame::Ours),
        }
    }

    fn secure(
        &mut self,
        socket: Socket,
        handshake: Box<Handshake>,
        caller: &Caller<'_>,
    ) -> AttemptStep {
        match handshake.go_on(&socket) {
            Ok(Progress::Going(handshake)) => {
                self.stage = AttemptStage::Securing { socket, handshake };
                AttemptStep::Wait
            }
            Ok(Progress::Done(records)) => {
                self.await_welcome(Connection::of_records(socket, records))
            }
            Err(Refused { hung_up: true, why }) => self.again(&why, Blame::Unclear, caller),
            Err(Refused { why, .. }) => self.give_up(&why, Blame::Unclear),
        }
    }

    fn await_welcome(&mut self, connection: Connection) -> AttemptStep {
        self.stage = AttemptStage::Proving { connection, welcome: [0; HEADER_BYTES], got: 0 };
        AttemptStep::On
    }

    fn prove(
        &mut self,
        mut connection: Connection,
        mut welcome: [u8; HEADER_BYTES],
        mut got: usize,
        caller: &Caller<'_>,
    ) -> AttemptStep {
        // No more than the welcome: what follows is read when the link stands.
        let heard = if caller.own.encrypts {
            self.open(&mut connection, &mut welcome[got..], caller)
        } else {
            self.hear(connection.socket(), &mut welcome[got..], caller)
        };
        match heard {
            Ok(count) => got += count,
            Err(step) => return step,
        }
        if got < HEADER_BYTES {
            self.stage = AttemptStage::Proving { connection, welcome, got };
            return AttemptStep::Wait;
        }
        if Header::read(welcome, 0) != Ok(Header::Welcome) {
            let why = format!("{welcome:02x?} in the place of a welcome");
            return self.give_up(&why, Blame::Corrupt);
        }
        AttemptStep::Made(connection)
    }

    /// Reads no more than what is missing; how many bytes came.
    fn hear(
        &mut self,
        socket: &Socket,
        into: &mut [u8],
        caller: &Caller<'_>,
    ) -> Result<usize, AttemptStep> {
        match socket.read_exact(into) {
            Ok(Some(0)) => Err(self.again(HANGS_UP, Blame::Unclear, caller)),
            Ok(Some(count)) => Ok(count),
            Ok(None) => Ok(0),
            Err(error) => Err(self.fail(error, caller)),
        }
    }

    /// The same over an encrypted connection.
    fn open(
        &mut self,
        connection: &mut Connection,
        into: &mut [u8],
        caller: &Caller<'_>,
    ) -> Result<usize, AttemptStep> {
        match connection.read(&mut [IoSliceMut::new(into)]) {
            Ok(Some(0)) | Err(LinkError::PeerGone { .. }) => {
                Err(self.again(HANGS_UP, Blame::Unclear, caller))
            }
            Ok(count) => Ok(count.unwrap_or(0)),
            Err(error) => {
                let corrupt = matches!(error, LinkError::Corrupt { .. });
                let blame = if corrupt { Blame::Corrupt } else { Blame::Unclear };
                Err(self.give_up(&error.to_string(), blame))
            }
        }
    }

    /// The system reports an error.
    fn fail(&mut self, error: Errno, caller: &Caller<'_>) -> AttemptStep {
        let why = error.to_string();
        match error {
            Errno::CONNREFUSED => self.give_up(&why, Blame::Gone),
            Errno::CONNRESET | Errno::PIPE => self.again(&why, Blame::Unclear, caller),
            _ if socket::is_ours(error) => self.again(&why, Blame::Ours, caller),
            _ => self.give_up(&why, Blame::Unclear),
        }
    }

    /// Tries the same place once more, unless that was tried often enough.
    fn again(&mut self, why: &str, blame: Blame, caller: &Caller<'_>) -> AttemptStep {
        self.tries += 1;
        if self.tries >= TRIES {
            return self.give_up(why, blame);
        }
        let pause = PAUSE_FIRST.saturating_mul(1 << self.tries.min(10)).min(PAUSE_MAX);
        self.stage = AttemptStage::Pausing { until: caller.now + pause };
        AttemptStep::Wait
    }

    /// Gives the place up.
    fn give_up(&mut self, why: &str, blame: Blame) -> AttemptStep {
        self.stage = AttemptStage::Over(format!("{}: {why}", self.place), blame);
        AttemptStep::Wait
    }
}

enum AttemptStep {
    /// The next stage may go on at once.
    On,
    /// Nothing more can be done now.
    Wait,
    Made(Connection),
}

/// A greeting to a peer.
///
/// # Errors
/// The system has no randomness.
pub(crate) fn hello(
    purpose: Purpose,
    own: &TcpAddress,
    peer: &TcpAddress,
) -> Result<Hello, LinkError> {
    Ok(Hello {
        purpose,
        caller_rank: own.rank,
        callee_rank: peer.rank,
        caller: own.id,
        callee: peer.id,
        nonce: crate::proof::random()?,
    })
}
