//! How two processes prove to each other that they belong to the job, before either believes a byte of the other.
//!
//! Caller and listener know the job's secret. From it and the job's name comes a key; all proofs are BLAKE3 hashes
//! with that key, each with a label of its own. Nothing here asks a clock or a socket.
//!
//! ```text
//! caller                                            listener
//!   hello   = who calls whom, nonce, proof   ──►    the proof is right: only then is the hello parsed
//!   the proof is right                       ◄──    answer = nonce, proof
//!   proof                                    ──►    the proof is right: the link stands
//! ```
//!
//! The proofs of answer and caller cover the hello, both nonces and both addresses, so ranks and addresses of both. A
//! recorded hello gets an answer to which only the secret has a proof; recorded answers and proofs fit no other nonce.
//! What follows on the connection is neither encrypted nor authenticated, unless both ends want that ([`crate::tls`]).

use crate::address::VERSION;
use gapless_btl::LinkError;
use rustix::io::Errno;
use rustix::rand::{GetRandomFlags, getrandom};

/// Names one end of links.
pub(crate) type Id = [u8; 16];
/// A hash.
pub(crate) type Digest = [u8; 32];

pub(crate) const HELLO_BYTES: usize = 112;
pub(crate) const ANSWER_BYTES: usize = 64;
pub(crate) const PROOF_BYTES: usize = 32;
/// Of a hello, what its proof covers.
const SAID_BYTES: usize = HELLO_BYTES - PROOF_BYTES;

const MAGIC: [u8; 4] = *b"GLhi";

/// Fresh randomness.
///
/// # Errors
/// The system has none.
pub(crate) fn random<const N: usize>() -> Result<[u8; N], LinkError> {
    let mut bytes = [0; N];
    let mut got = 0;
    while got < N {
        match getrandom(&mut bytes[got..], GetRandomFlags::empty()) {
            Ok(count) => got += count,
            Err(Errno::INTR) => {}
            Err(error) => return Err(crate::system("getrandom", error)),
        }
    }
    Ok(bytes)
}

/// The hash of an address.
pub(crate) fn digest(bytes: &[u8]) -> Digest {
    *blake3::hash(bytes).as_bytes()
}

/// By this, addresses of other jobs are told apart.
pub(crate) fn job_digest(job: &str) -> [u8; 16] {
    let whole = digest(job.as_bytes());
    <[u8; 16]>::try_from(&whole[..16]).expect("half of it")
}

/// Why a hello was made.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Purpose {
    /// To make a link.
    Call,
    /// To see whether the other host answers: the connection is closed at once.
    Pulse,
}

/// Who calls whom.
///
/// ```text
///  0      4         6         7   8             12            16        32        48      80      112
/// +------+---------+---------+---+-------------+-------------+---------+---------+-------+-------+
/// | GLhi | version | purpose | 0 | caller rank | callee rank | caller  | callee  | nonce | proof |
/// +------+---------+---------+---+-------------+-------------+---------+---------+-------+-------+
/// ```
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Hello {
    pub(crate) purpose: Purpose,
    pub(crate) caller_rank: u32,
    pub(crate) callee_rank: u32,
    pub(crate) caller: Id,
    pub(crate) callee: Id,
    pub(crate) nonce: Digest,
}

/// What both sides know of a call that is being proved.
#[derive(Clone, Debug)]
pub(crate) struct Talk {
    pub(crate) hello: [u8; HELLO_BYTES],
    /// The hashes of the addresses of caller and callee.
    pub(crate) addresses: [Digest; 2],
}

/// The key of a job.
pub(crate) struct Keys(Digest);

impl Keys {
    pub(crate) fn new(secret: &[u8; 32], job: &str) -> Keys {
        Keys(keyed(secret, "gapless-tcp job", &[job.as_bytes()]))
    }

    fn proof(&self, label: &'static str, parts: &[&[u8]]) -> Digest {
        keyed(&self.0, label, parts)
    }

    /// What the private key of this end of links is made of: whoever knows the job's secret knows it.
    #[cfg(feature = "encryption")]
    pub(crate) fn seed(&self, rank: u32, id: &Id) -> Digest {
        keyed(&self.0, "gapless-tcp Ed25519 seed", &[&rank.to_be_bytes(), id])
    }

    /// The bytes of a hello.
    pub(crate) fn say(&self, hello: &Hello) -> [u8; HELLO_BYTES] {
        let mut bytes = [0; HELLO_BYTES];
        bytes[..4].copy_from_slice(&MAGIC);
        bytes[4..6].copy_from_slice(&VERSION.to_be_bytes());
        bytes[6] = match hello.purpose {
            Purpose::Call => 1,
            Purpose::Pulse => 2,
        };
        bytes[8..12].copy_from_slice(&hello.caller_rank.to_be_bytes());
        bytes[12..16].copy_from_slice(&hello.callee_rank.to_be_bytes());
        bytes[16..32].copy_from_slice(&hello.caller);
        bytes[32..48].copy_from_slice(&hello.callee);
        bytes[48..80].copy_from_slice(&hello.nonce);
        self.sign(&mut bytes);
        bytes
    }

    /// Writes the proof that belongs to the rest of a hello.
    pub(crate) fn sign(&self, bytes: &mut [u8; HELLO_BYTES]) {
        let proof = self.proof("gapless-tcp hello", &[&bytes[..SAID_BYTES]]);
        bytes[SAID_BYTES..].copy_from_slice(&proof);
    }

    /// Reads a hello, once its proof is right.
    ///
    /// # Errors
    /// The caller does not know the secret, or speaks otherwise; in words.
    pub(crate) fn hear(&self, bytes: &[u8; HELLO_BYTES]) -> Result<Hello, &'static str> {
        let (said, proof) = bytes.split_at(SAID_BYTES);
        if !same(&self.proof("gapless-tcp hello", &[said]), proof) {
            return Err("it does not know the job's secret");
        }
        if said[..4] != MAGIC || said[4..6] != VERSION.to_be_bytes() || said[7] != 0 {
            return Err("it speaks another version");
        }
        let purpose = match said[6] {
            1 => Purpose::Call,
            2 => Purpose::Pulse,
            _ => return Err("it calls for a purpose that is unknown"),
        };
        let word =
            |at: usize| u32::from_be_bytes([said[at], said[at + 1], said[at + 2], said[at + 3]]);
        let id = |at: usize| <Id>::try_from(&said[at..at + 16]).expect("sixteen bytes");
        let nonce = <Digest>::try_from(&said[48..]).expect("thirty-two bytes");
        let (caller_rank, callee_rank) = (word(8), word(12));
        Ok(Hello { purpose, caller_rank, callee_rank, caller: id(16), callee: id(32), nonce })
    }

    /// The listener's answer to a hello, with a fresh nonce.
    pub(crate) fn answer(&self, talk: &Talk, nonce: &Digest) -> [u8; ANSWER_BYTES] {
        let mut bytes = [0; ANSWER_BYTES];
        bytes[..32].copy_from_slice(nonce);
        let [caller, callee] = &talk.addresses;
        let proof = self.proof("gapless-tcp answer", &[&talk.hello, caller, callee, nonce]);
        bytes[32..].copy_from_slice(&proof);
        bytes
    }

    /// Whether an answer is right.
    pub(crate) fn accepts(&self, talk: &Talk, answer: &[u8; ANSWER_BYTES]) -> bool {
        let nonce = <Digest>::try_from(&answer[..32]).expect("thirty-two bytes");
        same(&self.answer(talk, &nonce)[32..], &answer[32..])
    }

    /// The caller's proof, to be sent if the answer was right, and expected after it was given.
    pub(crate) fn prove(&self, talk: &Talk, answer: &[u8; ANSWER_BYTES]) -> [u8; PROOF_BYTES] {
        let [caller, callee] = &talk.addresses;
        self.proof("gapless-tcp proof", &[&talk.hello, caller, callee, answer])
    }

    /// Whether a caller's proof is right.
    pub(crate) fn is_proved(
        &self,
        talk: &Talk,
        answer: &[u8; ANSWER_BYTES],
        proof: &[u8; PROOF_BYTES],
    ) -> bool {
        same(&self.prove(talk, answer), proof)
    }
}

/// All parts but the last of each label have fixed lengths, so no two lists of parts have the same bytes.
fn keyed(key: &Digest, label: &'static str, parts: &[&[u8]]) -> Digest {
    let mut hasher = blake3::Hasher::new_keyed(key);
    hasher.update(label.as_bytes()).update(&[0]);
    parts.iter().for_each(|part| _ = hasher.update(part));
    *hasher.finalize().as_bytes()
}

/// Compares proofs in a time that does not depend on them.
fn same(ours: &[u8], theirs: &[u8]) -> bool {
    let whole = |bytes: &[u8]| <Digest>::try_from(bytes).map(blake3::Hash::from_bytes);
    // Equality of `Hash` takes constant time.
    matches!((whole(ours), whole(theirs)), (Ok(ours), Ok(theirs)) if ours == theirs)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn hello() -> Hello {
        let (caller, callee) = ([1; 16], [2; 16]);
        let (caller_rank, callee_rank) = (5, 6);
        Hello { purpose: Purpose::Call, caller_rank, callee_rank, caller, callee, nonce: [9; 32] }
    }

    fn keys() -> Keys {
        Keys::new(&[7; 32], "job")
    }

    #[test]
    fn both_prove_themselves() {
        let (caller, listener) = (keys(), keys());
        let said = caller.say(&hello());
        assert_eq!(listener.hear(&said), Ok(hello()));
        let pulse = Hello { purpose: Purpose::Pulse, ..hello() };
        assert_eq!(listener.hear(&caller.say(&pulse)), Ok(pulse));
        let talk = Talk { hello: said, addresses: [[3; 32], [4; 32]] };
        let answer = listener.answer(&talk, &[8; 32]);
        assert!(caller.accepts(&talk, &answer));
        assert!(listener.is_proved(&talk, &answer, &caller.prove(&talk, &answer)));
    }

    #[test]
    fn every_bit_counts() {
        let keys = keys();
        let said = keys.say(&hello());
        let talk = Talk { hello: said, addresses: [[3; 32], [4; 32]] };
        let answer = keys.answer(&talk, &[8; 32]);
        let proof = keys.prove(&talk, &answer);
        for bit in 0..8 * HELLO_BYTES {
            let mut changed = said;
            changed[bit / 8] ^= 1 << (bit % 8);
            assert!(keys.hear(&changed).is_err(), "bit {bit} of the hello");
            let other = Talk { hello: changed, ..talk.clone() };
            assert!(!keys.accepts(&other, &answer) && !keys.is_proved(&other, &answer, &proof));
        }
        for bit in 0..8 * ANSWER_BYTES {
            let mut changed = answer;
            changed[bit / 8] ^= 1 << (bit % 8);
            assert!(!keys.accepts(&talk, &changed), "bit {bit} of the answer");
            assert!(!keys.is_proved(&talk, &changed, &proof));
        }
        for bit in 0..8 * PROOF_BYTES {
            let mut changed = proof;
            changed[bit / 8] ^= 1 << (bit % 8);
            assert!(!keys.is_proved(&talk, &answer, &changed), "bit {bit} of the proof");
        }
    }

    #[test]
    fn other_secrets_jobs_and_addresses_prove_nothing() {
        let said = keys().say(&hello());
        let talk = Talk { hello: said, addresses: [[3; 32], [4; 32]] };
        let answer = keys().answer(&talk, &[8; 32]);
        for other in [Keys::new(&[6; 32], "job"), Keys::new(&[7; 32], "jobs")] {
            assert!(other.hear(&said).is_err());
            assert!(!other.accepts(&talk, &answer));
            assert_ne!(other.prove(&talk, &answer), keys().prove(&talk, &answer));
        }
        let moved = Talk { addresses: [[3; 32], [5; 32]], ..talk.clone() };
        assert!(!keys().accepts(&moved, &answer), "another address of the listener");
        // An answer is no proof: nothing that a listener says serves a caller.
        let echoed = <[u8; 32]>::try_from(&answer[32..]).unwrap();
        assert!(!keys().is_proved(&talk, &answer, &echoed));
    }

    #[test]
    fn proved_nonsense_is_refused_too() {
        let keys = keys();
        for (at, value) in [(0, 0), (5, 99), (6, 3), (7, 1)] {
            let mut bytes = keys.say(&hello());
            bytes[at] = value;
            let proof = keys.proof("gapless-tcp hello", &[&bytes[..SAID_BYTES]]);
            bytes[SAID_BYTES..].copy_from_slice(&proof);
            assert!(keys.hear(&bytes).is_err(), "byte {at} is {value}");
        }
    }
}
