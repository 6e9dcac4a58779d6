//! Encrypted records, which a connection carries after the handshake.
//!
//! rustls' record protection seals pieces straight into a record, and opens a record where it was read. This module
//! does the rest: headers, counts of records, updates of keys, alerts. [`BATCH`] bounds the records that are sealed and
//! not written, [`INBOX_BYTES`] what was read and not opened.
//!
//! A key seals as many records as AES-GCM allows (2²⁴); the last one is a KeyUpdate. The receiver does not answer it
//! with a new key of its own, because each direction counts for itself.

use crate::burst::Next;
use crate::socket::Socket;
use gapless_btl::LinkError;
use rustls::client::ClientConnectionData;
use rustls::crypto::cipher::{
    AeadKey, InboundOpaqueMessage, Iv, MessageDecrypter, MessageEncrypter, OutboundChunks,
    OutboundPlainMessage,
};
use rustls::kernel::KernelConnection;
use rustls::server::ServerConnectionData;
use rustls::{
    ConnectionTrafficSecrets, ContentType, Error, ExtractedSecrets, ProtocolVersion,
    SupportedCipherSuite,
};
use std::io::{IoSlice, IoSliceMut};

/// Bytes of a record's header: its type, a version, its length.
const HEADER_BYTES: usize = 5;
/// The most bytes of messages in a record.
const FULL: usize = 16 << 10;
/// By how much a record may be longer than that, header included.
const OVERHEAD: usize = 256 + HEADER_BYTES;
/// How many records are sealed before they are written.
const BATCH: usize = 4;
/// Room for what was read and not opened: one batch of the other end.
const INBOX_BYTES: usize = BATCH * (FULL + OVERHEAD);
/// The most pieces that are sealed into a record.
const PIECES: usize = 64;

/// KeyUpdate: the next record has the next key; no answer is wanted (RFC 8446, 4.6.3).
const KEY_UPDATE: [u8; 5] = [24, 0, 0, 1, 0];
/// Alerts: nothing more comes; a record was not sealed with the right key.
const CLOSE_NOTIFY: [u8; 2] = [1, 0];
const BAD_RECORD: [u8; 2] = [2, 20];

/// Derives the next keys.
pub(super) enum Kernel {
    Client(KernelConnection<ClientConnectionData>),
    Server(KernelConnection<ServerConnectionData>),
}

impl Kernel {
    fn next_outgoing(&mut self) -> Result<Numbered, Error> {
        match self {
            Kernel::Client(kernel) => kernel.update_tx_secret(),
            Kernel::Server(kernel) => kernel.update_tx_secret(),
        }
    }

    fn next_incoming(&mut self) -> Result<Numbered, Error> {
        match self {
            Kernel::Client(kernel) => kernel.update_rx_secret(),
            Kernel::Server(kernel) => kernel.update_rx_secret(),
        }
    }

    fn suite(&self) -> SupportedCipherSuite {
        match self {
            Kernel::Client(kernel) => kernel.negotiated_cipher_suite(),
            Kernel::Server(kernel) => kernel.negotiated_cipher_suite(),
        }
    }
}

/// Records on their way out.
struct Outgoing {
    seal: Box<dyn MessageEncrypter>,
    /// How many records this key has sealed.
    count: u64,
    /// How many it may seal.
    most: u64,
    /// Records that are not written in full, each with the number of bytes of messages in it.
    records: Vec<(Vec<u8>, usize)>,
    /// How many bytes of the first record are written.
    written: usize,
    /// Bytes of messages in all these records.
    sealed: usize,
    /// Bytes of records that were ever written.
    carried: u64,
}

/// Records that come.
struct Incoming {
    open: Box<dyn MessageDecrypter>,
    count: u64,
    inbox: Box<[u8]>,
    /// Where in the inbox is what was opened and not taken.
    opened: std::ops::Range<usize>,
    /// From here to `end`: what was not opened.
    start: usize,
    end: usize,
    /// The last record was a KeyUpdate.
    updated: bool,
    /// Nothing more comes after what was opened: the other end said so, or an error.
    over: Option<Result<(), LinkError>>,
}

/// Both directions of an encrypted connection.
pub(crate) struct Records {
    kernel: Kernel,
    outgoing: Outgoing,
    incoming: Incoming,
}

impl std::fmt::Debug for Records {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Records, {} sealed and {} opened", self.outgoing.count, self.incoming.count)
    }
}

/// The number of the next record of a key, and the key itself.
type Numbered = (u64, ConnectionTrafficSecrets);

fn sealer(
    suite: SupportedCipherSuite,
    (count, secrets): Numbered,
) -> Result<(u64, Box<dyn MessageEncrypter>), Error> {
    let SupportedCipherSuite::Tls13(suite) = suite;
    let (key, iv) = aes(secrets)?;
    Ok((count, suite.aead_alg.encrypter(key, iv)))
}

fn opener(
    suite: SupportedCipherSuite,
    (count, secrets): Numbered,
) -> Result<(u64, Box<dyn MessageDecrypter>), Error> {
    let SupportedCipherSuite::Tls13(suite) = suite;
    let (key, iv) = aes(secrets)?;
    Ok((count, suite.aead_alg.decrypter(key, iv)))
}

/// A key of the one cipher that is offered.
fn aes(secrets: ConnectionTrafficSecrets) -> Result<(AeadKey, Iv), Error> {
    match secrets {
        ConnectionTrafficSecrets::Aes128Gcm { key, iv } => Ok((key, iv)),
        _ => Err(Error::General("a key of another cipher than was offered".to_owned())),
    }
}

impl Records {
    pub(super) fn new(secrets: ExtractedSecrets, kernel: Kernel) -> Result<Records, Error> {
        let suite = kernel.suite();
        let (count, seal) = sealer(suite, secrets.tx)?;
        // The last one says that another key follows.
        let SupportedCipherSuite::Tls13(tls13) = suite;
        let most = tls13.common.confidentiality_limit - 1;
        let (records, written, sealed) = (Vec::new(), 0, 0);
        let outgoing = Outgoing { seal, count, most, records, written, sealed, carried: 0 };
        let (count, open) = opener(suite, secrets.rx)?;
        let incoming = Incoming {
            open,
            count,
            inbox: vec![0; INBOX_BYTES].into(),
            opened: 0..0,
            start: 0,
            end: 0,
            updated: false,
            over: None,
        };
        Ok(Records { kernel, outgoing, incoming })
    }

    /// As [`Connection::write`](crate::connection::Connection::write).
    pub(crate) fn write(
        &mut self,
        socket: &Socket,
        pieces: &[IoSlice<'_>],
        next: Next,
    ) -> Result<usize, LinkError> {
        let all: usize = pieces.iter().map(|piece| piece.len()).sum();
        debug_assert!(self.outgoing.sealed <= all, "what was sealed comes once more");
        let mut done = 0;
        loop {
            done += self.outgoing.drain(socket, next)?;
            if done >= all || !self.outgoing.records.is_empty() {
                return Ok(done);
            }
            for _ in 0..BATCH {
                let from = done + self.outgoing.sealed;
                if from < all {
                    self.seal(pieces, from)
                        .map_err(|error| crate::system("sealing a record", error))?;
                }
            }
        }
    }

    /// Seals one record of the pieces' bytes, beginning at byte `from` of them all.
    fn seal(&mut self, pieces: &[IoSlice<'_>], mut from: usize) -> Result<(), Error> {
        if self.outgoing.count >= self.outgoing.most {
            self.outgoing.record(ContentType::Handshake, &[&KEY_UPDATE])?;
            let next = self.kernel.next_outgoing()?;
            (self.outgoing.count, self.outgoing.seal) = sealer(self.kernel.suite(), next)?;
        }
        let (mut chunks, mut count, mut bytes): ([&[u8]; PIECES], _, _) = ([&[]; PIECES], 0, 0);
        for piece in pieces {
            let Some(piece) = piece.get(from..).filter(|piece| !piece.is_empty()) else {
                from -= piece.len();
                continue;
            };
            from = 0;
            let piece = &piece[..piece.len().min(FULL - bytes)];
            (chunks[count], count, bytes) = (piece, count + 1, bytes + piece.len());
            if bytes == FULL || count == PIECES {
                break;
            }
        }
        self.outgoing.record(ContentType::ApplicationData, &chunks[..count])
    }

    pub(crate) fn sealed(&self) -> usize {
        self.outgoing.sealed
    }

    pub(crate) fn carried(&self) -> u64 {
        self.outgoing.carried
    }

    /// Says that nothing more comes, if there is room for that.
    pub(crate) fn fall_silent(&mut self, socket: &Socket) {
        self.warn(socket, CLOSE_NOTIFY);
    }

    fn warn(&mut self, socket: &Socket, alert: [u8; 2]) {
        if self.outgoing.record(ContentType::Alert, &[&alert]).is_ok() {
            let _ = self.outgoing.drain(socket, Next::Leaves);
        }
    }

    /// As [`Connection::read`](crate::connection::Connection::read).
    pub(crate) fn read(
        &mut self,
        socket: &Socket,
        pieces: &mut [IoSliceMut<'_>],
    ) -> Result<Option<usize>, LinkError> {
        let (mut got, mut dry) = (0, false);
        for piece in pieces {
            let mut at = 0;
            while at < piece.len() {
                let taken = self.incoming.take(&mut piece[at..]);
                (at, got) = (at + taken, got + taken);
                if taken > 0 {
                    continue;
                }
                match &self.incoming.over {
                    Some(_) if got > 0 => return Ok(Some(got)),
                    Some(Ok(())) => return Ok(Some(0)),
                    Some(Err(error)) => return Err(error.clone()),
                    None => {}
                }
                match self.open_next(socket.at) {
                    Ok(true) => {}
                    Ok(false) if dry => return Ok((got > 0).then_some(got)),
                    Ok(false) => dry = self.incoming.fill(socket),
                    Err(error) => {
                        if matches!(error, LinkError::Unreachable { .. }) {
                            self.warn(socket, BAD_RECORD);
                        }
                        self.incoming.over = Some(Err(error));
                    }
                }
            }
        }
        Ok(Some(got))
    }

    /// Whether a read would give anything even if the socket has nothing.
    pub(crate) fn has_more(&self) -> bool {
        let Incoming { opened, over, .. } = &self.incoming;
        !opened.is_empty() || over.is_some() || self.incoming.next_len().is_some()
    }

    /// Opens the next record if it is here in full; whether it was.
    fn open_next(&mut self, at: std::net::SocketAddr) -> Result<bool, LinkError> {
        let bad = |what: &dyn std::fmt::Display| LinkError::Unreachable {
            reason: format!(
                "{at}: {what}: it is not the peer's, or somebody changed it on the way"
            ),
        };
        let Records { kernel, incoming, .. } = self;
        let head = incoming.start;
        let Some(&[kind, 3, 3, high, low]) =
            incoming.inbox[..incoming.end].get(head..head + HEADER_BYTES)
        else {
            return match incoming.end - head < HEADER_BYTES {
                true => Ok(false),
                false => Err(bad(&"no record of TLS comes")),
            };
        };
        let len = usize::from(u16::from_be_bytes([high, low]));
        if kind != u8::from(ContentType::ApplicationData) || len > FULL + OVERHEAD - HEADER_BYTES {
            return Err(bad(&format_args!("a record of kind {kind} and {len} bytes")));
        }
        let body = head + HEADER_BYTES;
        let Some(sealed) = incoming.inbox[..incoming.end].get_mut(body..body + len) else {
            return Ok(false);
        };
        let (kind, version) = (ContentType::ApplicationData, ProtocolVersion::TLSv1_2);
        let sealed = InboundOpaqueMessage::new(kind, version, sealed);
        let plain = incoming.open.decrypt(sealed, incoming.count).map_err(|error| bad(&error))?;
        (incoming.start, incoming.count) = (body + len, incoming.count + 1);
        let corrupt = |what: String| Err(LinkError::Corrupt { what });
        let updated = std::mem::take(&mut incoming.updated);
        match (plain.typ, plain.payload) {
            (ContentType::ApplicationData, [_, ..]) => {
                incoming.opened = body..body + plain.payload.len();
            }
            (ContentType::Handshake, update) if *update == KEY_UPDATE && !updated => {
                incoming.updated = true;
                let next = kernel.next_incoming().and_then(|next| opener(kernel.suite(), next));
                (incoming.count, incoming.open) =
                    next.map_err(|error| crate::system("the next key", error))?;
            }
            (ContentType::Alert, alert) if *alert == CLOSE_NOTIFY => incoming.over = Some(Ok(())),
            (ContentType::Alert, &[2, code]) => {
                let reason = format!(
                    "{at} does not take what came from here (alert {code}): it was changed on the way, or the \
                     key of our rank is another one"
                );
                return Err(LinkError::Unreachable { reason });
            }
            (kind, bytes) => {
                return corrupt(format!("a record of {kind:?} and {} bytes", bytes.len()));
            }
        }
        Ok(true)
    }

    #[cfg(test)]
    pub(crate) fn renew_after(&mut self, records: u64) {
        self.outgoing.most = records;
    }
}

impl Outgoing {
    /// Seals a record.
    fn record(&mut self, typ: ContentType, chunks: &[&[u8]]) -> Result<(), Error> {
        let (version, payload) = (ProtocolVersion::TLSv1_2, OutboundChunks::new(chunks));
        let record =
            self.seal.encrypt(OutboundPlainMessage { typ, version, payload }, self.count)?;
        self.count += 1;
        let bytes = match typ {
            ContentType::ApplicationData => chunks.iter().map(|chunk| chunk.len()).sum(),
            _ => 0,
        };
        self.sealed += bytes;
        self.records.push((record.encode(), bytes));
        Ok(())
    }

    /// Writes what is sealed; how many bytes of messages have left with it. These are the bytes of all records that
    /// have left in full, because the other end may have read and counted those.
    fn drain(&mut self, socket: &Socket, next: Next) -> Result<usize, LinkError> {
        // A batch, with a KeyUpdate before each record, and an alert.
        let mut pieces = [IoSlice::new(&[]); 2 * BATCH + 1];
        if self.records.is_empty() {
            return Ok(0);
        }
        let mut skip = self.written;
        for (piece, (record, _)) in pieces.iter_mut().zip(&self.records) {
            *piece = IoSlice::new(&record[skip..]);
            skip = 0;
        }
        let count = self.records.len().min(pieces.len());
        let wrote = socket.write_next(&pieces[..count], next);
        let wrote = wrote.map_err(|error| socket.ended(error))?;
        self.carried += wrote as u64;
        let (mut left, mut whole, mut gone) = (self.written + wrote, 0, 0);
        for (record, bytes) in &self.records {
            if record.len() > left {
                break;
            }
            (left, whole, gone) = (left - record.len(), whole + 1, gone + bytes);
        }
        self.records.drain(..whole);
        (self.written, self.sealed) = (left, self.sealed - gone);
        Ok(gone)
    }
}

impl Incoming {
    /// Copies as much of what was opened as there is room for.
    fn take(&mut self, into: &mut [u8]) -> usize {
        let count = self.opened.len().min(into.len());
        let from = self.opened.start;
        into[..count].copy_from_slice(&self.inbox[from..from + count]);
        self.opened.start += count;
        count
    }

    /// The length of the next record, header included, if it is here in full.
    fn next_len(&self) -> Option<usize> {
        match &self.inbox[self.start..self.end] {
            rest @ [_, _, _, high, low, ..] => {
                let len = HEADER_BYTES + usize::from(u16::from_be_bytes([*high, *low]));
                (rest.len() >= len).then_some(len)
            }
            _ => None,
        }
    }

    /// Reads more, once all that was opened was taken; whether nothing is left in the socket.
    fn fill(&mut self, socket: &Socket) -> bool {
        self.inbox.copy_within(self.start..self.end, 0);
        (self.start, self.end, self.opened) = (0, self.end - self.start, 0..0);
        let room = &mut self.inbox[self.end..];
        let all = room.len();
        match socket.read_exact(room) {
            // A connection that ends without a word may have been cut, or its process killed.
            Ok(Some(0)) => self.over = Some(Err(socket.closed())),
            Ok(Some(count)) => {
                self.end += count;
                return count < all;
            }
            Ok(None) => return true,
            Err(error) => self.over = Some(Err(socket.ended(error))),
        }
        false
    }
}
