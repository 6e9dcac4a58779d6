//! The handshake of TLS, which follows the proofs.
//!
//! Until the listener's welcome, both ends send only what this module writes. Anything else that comes before the
//! handshake is over breaks the rules. At most [`INCOMING_BYTES`] of what the other end says are kept.

use super::keys;
use super::records::{Kernel, Records};
use crate::address::TcpAddress;
use crate::proof::Keys;
use crate::socket::Socket;
use rustls::client::UnbufferedClientConnection;
use rustls::pki_types::ServerName;
use rustls::server::UnbufferedServerConnection;
use rustls::unbuffered::{ConnectionState, UnbufferedStatus};
use std::io::IoSlice;
use std::net::{IpAddr, Ipv4Addr};
use std::sync::Arc;

/// Each end says some 500 bytes at a time.
const INCOMING_BYTES: usize = 4096;
/// Room for one of our own messages.
const OUTGOING_BYTES: usize = 4096;

/// The caller is the client, the listener the server.
enum HandshakeEnd {
    Client(UnbufferedClientConnection),
    Server(UnbufferedServerConnection),
}

/// How far a handshake has come.
pub(crate) enum Progress {
    Going(Box<Handshake>),
    /// The other end has the right key; from now on everything is encrypted.
    Done(Box<Records>),
}

/// Why a handshake has failed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Refused {
    /// The other end hung up, or this one cannot write. That says nothing about the other end's key.
    pub(crate) hung_up: bool,
    pub(crate) why: String,
}

impl Refused {
    fn new(hung_up: bool, why: impl std::fmt::Display) -> Refused {
        Refused { hung_up, why: why.to_string() }
    }
}

/// A handshake that is not over.
pub(crate) struct Handshake {
    end: HandshakeEnd,
    /// Bytes that have come and were not processed; so many of them.
    incoming: Box<[u8]>,
    got: usize,
    outgoing: Vec<u8>,
}

impl std::fmt::Debug for Handshake {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Handshake with {} bytes that wait", self.got)
    }
}

/// What has to be done next.
enum HandshakeStep {
    /// Process what is left.
    On,
    /// Write what was made.
    Write,
    /// Read more.
    Read,
    /// Nothing: the handshake is over.
    Done,
}

impl Handshake {
    /// The caller's handshake.
    pub(crate) fn call(
        keys: &Keys,
        own: &TcpAddress,
        peer: &TcpAddress,
    ) -> Result<Handshake, String> {
        // rustls wants a name. It is neither sent nor checked: the key says who the peer is.
        let name = ServerName::from(IpAddr::from(Ipv4Addr::UNSPECIFIED));
        let config = Arc::new(keys::client(keys, own, peer).map_err(in_words)?);
        let client = UnbufferedClientConnection::new(config, name).map_err(in_words)?;
        Ok(Handshake::new(HandshakeEnd::Client(client)))
    }

    /// The listener's handshake.
    pub(crate) fn listen(
        keys: &Keys,
        own: &TcpAddress,
        peer: &TcpAddress,
    ) -> Result<Handshake, String> {
        let config = Arc::new(keys::server(keys, own, peer).map_err(in_words)?);
        let server = UnbufferedServerConnection::new(config).map_err(in_words)?;
        Ok(Handshake::new(HandshakeEnd::Server(server)))
    }

    fn new(end: HandshakeEnd) -> Handshake {
        let incoming = vec![0; INCOMING_BYTES].into();
        Handshake { end, incoming, got: 0, outgoing: Vec::new() }
    }

    /// Goes on as far as it can.
    ///
    /// # Errors
    /// The other end is not who it should be, or somebody changed what it said; or it hung up.
    pub(crate) fn go_on(mut self: Box<Self>, socket: &Socket) -> Result<Progress, Refused> {
        loop {
            match self.step() {
                Ok(HandshakeStep::On) => {}
                Ok(HandshakeStep::Write) => self.write(socket)?,
                Ok(HandshakeStep::Done) => {
                    return self
                        .finish()
                        .map(Progress::Done)
                        .map_err(|why| Refused::new(false, why));
                }
                Ok(HandshakeStep::Read) => {
                    if !self.read(socket)? {
                        return Ok(Progress::Going(self));
                    }
                }
                Err(why) => {
                    // If rustls has an alert for the other end, its next step is to encode that.
                    if self.has_alert() && matches!(self.step(), Ok(HandshakeStep::On)) {
                        let _ = self.write(socket);
                    }
                    return Err(Refused::new(false, why));
                }
            }
        }
    }

    /// Whether rustls has something to send.
    fn has_alert(&self) -> bool {
        match &self.end {
            HandshakeEnd::Client(client) => client.wants_write(),
            HandshakeEnd::Server(server) => server.wants_write(),
        }
    }

    /// Processes what has come.
    fn step(&mut self) -> Result<HandshakeStep, String> {
        let Handshake { end, incoming, got, outgoing } = self;
        let bytes = &mut incoming[..*got];
        let (discard, step) = match end {
            HandshakeEnd::Client(client) => follow(client.process_tls_records(bytes), outgoing),
            HandshakeEnd::Server(server) => follow(server.process_tls_records(bytes), outgoing),
        };
        incoming.copy_within(discard..*got, 0);
        *got -= discard;
        step
    }

    /// Reads what has come; whether anything has.
    fn read(&mut self, socket: &Socket) -> Result<bool, Refused> {
        let room = &mut self.incoming[self.got..];
        if room.is_empty() {
            return Err(Refused::new(false, "it says too much before its key is known"));
        }
        match socket.read_exact(room) {
            Ok(Some(0)) => Err(Refused::new(true, "it hangs up before its key is known")),
            Ok(Some(count)) => {
                self.got += count;
                Ok(true)
            }
            Ok(None) => Ok(false),
            Err(error) => Err(Refused::new(true, error)),
        }
    }

    /// Writes what was made. A connection that has carried nothing but proofs has room for it.
    fn write(&mut self, socket: &Socket) -> Result<(), Refused> {
        match socket.write(&[IoSlice::new(&self.outgoing)]) {
            Ok(written) if written == self.outgoing.len() => {
                self.outgoing.clear();
                Ok(())
            }
            Ok(_) => Err(Refused::new(true, "it has no room for a handshake")),
            Err(error) => Err(Refused::new(true, error)),
        }
    }

    fn finish(self: Box<Self>) -> Result<Box<Records>, String> {
        if self.got > 0 {
            return Err("it speaks before it was welcomed".to_owned());
        }
        let records = match self.end {
            HandshakeEnd::Client(client) => client
                .dangerous_into_kernel_connection()
                .and_then(|(secrets, kernel)| Records::new(secrets, Kernel::Client(kernel))),
            HandshakeEnd::Server(server) => server
                .dangerous_into_kernel_connection()
                .and_then(|(secrets, kernel)| Records::new(secrets, Kernel::Server(kernel))),
        };
        records.map(Box::new).map_err(in_words)
    }
}

/// How many of the bytes are done with, and what the state that they led to asks for.
fn follow<D>(
    UnbufferedStatus { discard, state }: UnbufferedStatus<'_, '_, D>,
    outgoing: &mut Vec<u8>,
) -> (usize, Result<HandshakeStep, String>) {
    (discard, state.map_err(in_words).and_then(|state| act(state, outgoing)))
}

/// Does what a state asks for.
fn act<D>(
    state: ConnectionState<'_, '_, D>,
    outgoing: &mut Vec<u8>,
) -> Result<HandshakeStep, String> {
    match state {
        ConnectionState::EncodeTlsData(mut data) => {
            let had = outgoing.len();
            outgoing.resize(had + OUTGOING_BYTES, 0);
            let made = data.encode(&mut outgoing[had..]).map_err(in_words)?;
            outgoing.truncate(had + made);
            Ok(HandshakeStep::On)
        }
        ConnectionState::TransmitTlsData(data) => {
            data.done();
            Ok(HandshakeStep::Write)
        }
        ConnectionState::BlockedHandshake => Ok(HandshakeStep::Read),
        ConnectionState::WriteTraffic(_) => Ok(HandshakeStep::Done),
        other => Err(format!("{other:?} before it was welcomed")),
    }
}

fn in_words(error: impl std::fmt::Display) -> String {
    format!("it does not hold the key of its rank, or somebody changes what is said: {error}")
}
