//! What goes between connection managers: datagrams that only processes of the job can make.
//!
//! Every datagram ends with a keyed BLAKE3 hash of all before it. The key comes from the job's secret and name; sender
//! and receiver are named in the datagram, so one cannot be taken for another's. Nothing of it is parsed before the
//! hash is right. A recorded datagram that is sent again says nothing new: it concerns one pair of processes, which live
//! once, and no sign of life is taken twice ([`Signs`]).

use crate::address::{Id, VERSION};
use crate::bytes::{Reader, Writer};
use crate::qp_address::QpAddress;
use gapless_btl::Secret;

/// The length of a datagram.
pub(crate) const DATAGRAM_BYTES: usize = SAID_BYTES + PROOF_BYTES;
/// What the proof covers.
const SAID_BYTES: usize = 4 + 2 + 2 + 16 + 4 + 16 + QpAddress::BYTES + 4 * 4 + 4 + 12 + 4;
/// Where the turn is.
const TURN_AT: usize = SAID_BYTES - 4;
const PROOF_BYTES: usize = 32;
const MAGIC: [u8; 4] = *b"GLhi";

/// Of a key of a region.
pub(crate) const TAG_BYTES: usize = 8;

/// What is said.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Word {
    /// Where the sender's queue pair is.
    Hello(Hello),
    /// The process lives; it may be busy. It answers the hello of this turn.
    Alive(u32),
    /// There will be no link.
    Refused(Refusal),
}

/// Why there will be no link.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Refusal {
    /// The sender has lost the receiver, or cannot go together with it.
    Lost,
    /// The sender has no queue pair for it.
    NoRoom,
}

/// One end of a link, as it tells the other.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Hello {
    /// The number of the queue pair that serves this link.
    pub(crate) number: u32,
    /// The first packet's sequence number.
    pub(crate) sequence: u32,
    /// Messages that it can take before it has given room again.
    pub(crate) buffers: u32,
    /// The longest message.
    pub(crate) fragment_bytes: u32,
    /// The largest packet, as verbs number them.
    pub(crate) mtu: u8,
    /// Reads that it serves at a time.
    pub(crate) reads: u8,
    /// The word into which the receiver may write how many messages it has had: the adapter's key, and the address.
    pub(crate) ack_word: (u32, u64),
    /// It has heard a hello of the receiver, and its queue pair can receive.
    pub(crate) knows: bool,
    /// It knows that it is known: nothing needs to be answered.
    pub(crate) up: bool,
    /// The sender's hellos to the receiver are numbered, from 1.
    pub(crate) turn: u32,
}

/// Signs that a peer lives: each counts once.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Signs {
    /// Our hellos to it.
    said: u32,
    /// The last of them that it has answered.
    answered: u32,
    /// The last of its own.
    heard: u32,
}

impl Signs {
    /// The number of our next hello.
    pub(crate) fn next_turn(&mut self) -> u32 {
        self.said = self.said.saturating_add(1);
        self.said
    }

    /// Whether the peer has said this after all that it is known to have said: then it lived when it did.
    pub(crate) fn take(&mut self, word: &Word) -> bool {
        let (last, turn) = match word {
            Word::Hello(hello) => (&mut self.heard, hello.turn),
            Word::Alive(turn) if *turn <= self.said => (&mut self.answered, *turn),
            Word::Alive(_) | Word::Refused(_) => return false,
        };
        let new = turn > *last;
        *last = turn.max(*last);
        new
    }
}

/// A datagram.
///
/// ```text
///  0      4         6      7       8      24     28   44     66           70         74        78               82
/// +------+---------+------+-------+------+------+----+------+------------+----------+---------+----------------+
/// | GLhi | version | word | flags | from | rank | to | cm   | queue pair | sequence | buffers | fragment bytes |
/// +------+---------+------+-------+------+------+----+------+------------+----------+---------+----------------+
///  82    83      84  86            90                 98     102     134
/// +-----+-------+---+-------------+------------------+------+-------+
/// | MTU | reads | 0 | key of word | address of word  | turn | proof |
/// +-----+-------+---+-------------+------------------+------+-------+
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Datagram {
    pub(crate) from: Id,
    /// The sender's number in the job, by which it can be looked up.
    pub(crate) rank: u32,
    pub(crate) to: Id,
    /// Where the sender can be answered.
    pub(crate) cm: QpAddress,
    pub(crate) word: Word,
}

/// The job's key.
#[derive(Clone)]
pub(crate) struct Keys([u8; 32]);

impl Keys {
    pub(crate) fn new(secret: &Secret, job: &str) -> Keys {
        let mut hasher = blake3::Hasher::new_derive_key("gapless btl-ib, version 1, job");
        hasher.update(secret.bytes()).update(job.as_bytes());
        Keys(*hasher.finalize().as_bytes())
    }

    /// The key of datagram queue pairs, which adapters compare: keeps other programs' datagrams out. The top bit stays
    /// clear, as it means something.
    pub(crate) fn queue_key(&self) -> u32 {
        let hash = blake3::keyed_hash(&self.0, b"queue key");
        u32::from_le_bytes(*hash.as_bytes().first_chunk().expect("32 bytes")) & 0x7fff_ffff
    }

    /// By which damaged keys of regions are told.
    pub(crate) fn tag(&self, bytes: &[u8]) -> [u8; TAG_BYTES] {
        *blake3::keyed_hash(&self.0, bytes).as_bytes().first_chunk().expect("32 bytes")
    }
}

impl Datagram {
    pub(crate) fn seal(&self, keys: &Keys) -> [u8; DATAGRAM_BYTES] {
        let mut bytes = [0; DATAGRAM_BYTES];
        let mut into = Writer::new(&mut bytes);
        let (word, hello) = match self.word {
            Word::Hello(hello) => (1, Some(hello)),
            Word::Alive(_) => (2, None),
            Word::Refused(_) => (3, None),
        };
        let flags = match self.word {
            Word::Hello(hello) => u8::from(hello.knows) | u8::from(hello.up) << 1,
            Word::Alive(_) | Word::Refused(Refusal::Lost) => 0,
            Word::Refused(Refusal::NoRoom) => 1,
        };
        into.put(&MAGIC).put(&VERSION.to_le_bytes()).put(&[word, flags]);
        into.put(&self.from).put(&self.rank.to_le_bytes()).put(&self.to);
        self.cm.write(&mut into);
        if let Some(hello) = hello {
            let Hello { number, sequence, buffers, fragment_bytes, .. } = hello;
            let last = u32::from(hello.mtu) | u32::from(hello.reads) << 8;
            for number in [number, sequence, buffers, fragment_bytes, last, hello.ack_word.0] {
                into.put(&number.to_le_bytes());
            }
            into.put(&hello.ack_word.1.to_le_bytes());
        }
        let turn = match self.word {
            Word::Hello(Hello { turn, .. }) | Word::Alive(turn) => turn,
            Word::Refused(_) => 0,
        };
        bytes[TURN_AT..SAID_BYTES].copy_from_slice(&turn.to_le_bytes());
        let proof = blake3::keyed_hash(&keys.0, &bytes[..SAID_BYTES]);
        bytes[SAID_BYTES..].copy_from_slice(proof.as_bytes());
        bytes
    }

    /// Reads what has arrived.
    ///
    /// # Errors
    /// It is none, or its sender is not of the job.
    pub(crate) fn open(bytes: &[u8], keys: &Keys) -> Result<Datagram, &'static str> {
        if bytes.len() != DATAGRAM_BYTES {
            return Err("it has a wrong length");
        }
        let (said, proof) = bytes.split_at(SAID_BYTES);
        let right = blake3::keyed_hash(&keys.0, said);
        // `blake3::Hash` compares in constant time.
        if !proof.first_chunk::<PROOF_BYTES>().is_some_and(|proof| right == *proof) {
            return Err("its proof is wrong");
        }
        let mut from = Reader(said);
        if from.take::<4>() != MAGIC || from.u16() != VERSION {
            return Err("it is of another version");
        }
        let (word, flags) = (from.u8(), from.u8());
        let (sender, rank, to) = (from.take(), from.u32(), from.take());
        let cm = QpAddress::read(&mut from).map_err(|_| "its sender has no address")?;
        let turn = Reader(&said[TURN_AT..]).u32();
        let word = match word {
            1 => {
                let [number, sequence] = [from.u32(), from.u32()];
                let [buffers, fragment_bytes] = [from.u32(), from.u32()];
                let [mtu, reads] = [from.u8(), from.u8()];
                let _zero = from.u16();
                let ack_word = (from.u32(), from.u64());
                let wrong = number == 0 || (number | sequence) >> 24 != 0 || reads == 0;
                if wrong || !(1..=5).contains(&mtu) || ack_word.1 % 8 != 0 {
                    return Err("its queue pair cannot be");
                }
                let (knows, up) = (flags & 1 != 0, flags & 2 != 0);
                Word::Hello(Hello {
                    number,
                    sequence,
                    buffers,
                    fragment_bytes,
                    mtu,
                    reads,
                    ack_word,
                    knows,
                    up,
                    turn,
                })
            }
            2 => Word::Alive(turn),
            3 if flags == 0 => Word::Refused(Refusal::Lost),
            3 => Word::Refused(Refusal::NoRoom),
            _ => return Err("it says an unknown word"),
        };
        Ok(Datagram { from: sender, rank, to, cm, word })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn keys(secret: u8) -> Keys {
        Keys::new(&Secret::new([secret; 32]), "job")
    }

    fn datagram() -> Datagram {
        let hello = Hello {
            number: 0x11,
            sequence: 0x22,
            buffers: 32,
            fragment_bytes: 4096,
            mtu: 3,
            reads: 16,
            ack_word: (0x9876_5432, 0x0123_4567_89ab_cde8),
            knows: true,
            up: false,
            turn: 77,
        };
        let cm = QpAddress { gid: [9; 16], lid: 3, number: 17 };
        Datagram { from: [1; 16], rank: 0x7654_3210, to: [2; 16], cm, word: Word::Hello(hello) }
    }

    #[test]
    fn datagrams_survive_the_wire() {
        let refusals = [Refusal::Lost, Refusal::NoRoom].map(Word::Refused);
        for word in [datagram().word, Word::Alive(5)].into_iter().chain(refusals) {
            let datagram = Datagram { word, ..datagram() };
            assert_eq!(Datagram::open(&datagram.seal(&keys(1)), &keys(1)), Ok(datagram));
        }
    }

    #[test]
    fn who_does_not_know_the_secret_says_nothing() {
        let bytes = datagram().seal(&keys(1));
        assert!(Datagram::open(&bytes, &keys(2)).is_err());
        let other_job = Keys::new(&Secret::new([1; 32]), "another");
        assert!(Datagram::open(&bytes, &other_job).is_err());
        for at in 0..bytes.len() {
            let mut bytes = bytes;
            bytes[at] ^= 1;
            assert!(Datagram::open(&bytes, &keys(1)).is_err(), "byte {at}");
        }
        for len in 0..bytes.len() {
            assert!(Datagram::open(&bytes[..len], &keys(1)).is_err(), "{len} bytes");
        }
    }

    #[test]
    fn a_proved_hello_of_nonsense_is_refused() {
        let Word::Hello(right) = datagram().word else { unreachable!() };
        for wrong in [
            Hello { number: 0, ..right },
            Hello { number: 1 << 24, ..right },
            Hello { sequence: 1 << 24, ..right },
            Hello { mtu: 0, ..right },
            Hello { mtu: 6, ..right },
            Hello { reads: 0, ..right },
            Hello { ack_word: (1, 4), ..right },
        ] {
            let datagram = Datagram { word: Word::Hello(wrong), ..datagram() };
            assert!(Datagram::open(&datagram.seal(&keys(1)), &keys(1)).is_err(), "{wrong:?}");
        }
    }

    #[test]
    fn a_sign_of_life_counts_once() {
        let Word::Hello(hello) = datagram().word else { unreachable!() };
        let hello = |turn| Word::Hello(Hello { turn, ..hello });
        let mut signs = Signs::default();
        assert!(!signs.take(&Word::Alive(1)), "nobody has called");
        let turns = [(); 3].map(|()| signs.next_turn());
        assert_eq!(turns, [1, 2, 3]);
        // The answer to the second comes first.
        assert!(signs.take(&Word::Alive(2)) && !signs.take(&Word::Alive(1)));
        assert!(!signs.take(&Word::Alive(2)) && !signs.take(&Word::Alive(4)));
        assert!(signs.take(&Word::Alive(3)) && !signs.take(&Word::Alive(3)));
        assert!(signs.take(&hello(1)) && !signs.take(&hello(1)) && signs.take(&hello(9)));
        assert!(!signs.take(&hello(8)) && !signs.take(&Word::Refused(Refusal::Lost)));
    }
}
