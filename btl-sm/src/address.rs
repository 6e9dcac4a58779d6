//! Who a process is and what it says first: the bytes of an [`Address`] and of a greeting.
//!
//! Both are parsed once into checked types. Numbers are in the writer's byte order, and the mark
//! that shows the order comes first.

use crate::config::SlotClass;
use crate::geometry::{CLASSES, Geometry};
use crate::wire::HELLO;
use gapless_btl::{Address, LinkError};
use std::fmt::Write as _;
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout};

/// Names one [`Sm`](crate::Sm), anywhere, ever. It is also a capability: whoever greets must know it. So it is
/// told to peers alone, and is no part of the listener's name, which every process can read.
pub(crate) type Nonce = [u8; 16];

const MAGIC: [u8; 4] = *b"GLsm";
/// Changes with anything that two ends must agree on.
const VERSION: u16 = 6;
/// Bytes in a word: shared counters have this size.
const WORD_BYTES: u32 = usize::BITS / 8;
/// Reads differently in the other byte order.
const ORDER: u16 = 0x0102;
pub(crate) const JOB_BYTES: usize = 128;
pub(crate) const NAME_BYTES: usize = 64;

/// The fixed part of an address; the job and the name follow.
#[derive(Clone, Copy, Debug, FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C)]
struct AddressWire {
    magic: [u8; 4],
    order: u16,
    version: u16,
    word_bytes: u32,
    uid: u32,
    pid: u32,
    job_bytes: u16,
    name_bytes: u16,
    net: u64,
    pids: u64,
    boot: [u8; 16],
    place: [u8; 16],
    nonce: Nonce,
}

const _: () = assert!(size_of::<AddressWire>() == 88);

/// An address, read.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct SmAddress {
    pub(crate) uid: u32,
    /// In the writer's process-id namespace.
    pub(crate) pid: u32,
    /// That namespace; 0 if unknown.
    pub(crate) pids: u64,
    /// The network namespace, in which abstract names live; 0 if unknown.
    pub(crate) net: u64,
    /// Which start of which machine; zeros if unknown.
    pub(crate) boot: [u8; 16],
    /// What the listener is called.
    pub(crate) place: [u8; 16],
    pub(crate) nonce: Nonce,
    pub(crate) job: String,
    pub(crate) name: String,
}

fn bad(what: impl Into<String>) -> LinkError {
    LinkError::BadAddress { what: what.into() }
}

impl SmAddress {
    /// This process's address.
    ///
    /// # Errors
    /// A job or name that is too long; no randomness to be had.
    pub(crate) fn own(job: &str, name: &str) -> Result<SmAddress, LinkError> {
        if job.len() > JOB_BYTES || name.len() > NAME_BYTES {
            return Err(bad(format!(
                "a job of {} bytes and a name of {}: at most {JOB_BYTES} and {NAME_BYTES}",
                job.len(),
                name.len()
            )));
        }
        let (mut place, mut nonce) = ([0; 16], Nonce::default());
        random(&mut place)?;
        random(&mut nonce)?;
        let namespace = |file: &str| rustix::fs::stat(file).map_or(0, |found| found.st_ino);
        let text = std::fs::read_to_string("/proc/sys/kernel/random/boot_id").unwrap_or_default();
        let digits: String = text.chars().filter(char::is_ascii_hexdigit).collect();
        let boot = u128::from_str_radix(&digits, 16).unwrap_or(0).to_be_bytes();
        Ok(SmAddress {
            uid: rustix::process::geteuid().as_raw(),
            pid: std::process::id(),
            pids: namespace("/proc/self/ns/pid"),
            net: namespace("/proc/self/ns/net"),
            boot,
            place,
            nonce,
            job: job.to_owned(),
            name: name.to_owned(),
        })
    }

    /// The bytes to publish.
    pub(crate) fn to_bytes(&self) -> Address {
        let short = |text: &str| u16::try_from(text.len()).expect("checked when it was made");
        let wire = AddressWire {
            magic: MAGIC,
            order: ORDER,
            version: VERSION,
            word_bytes: WORD_BYTES,
            uid: self.uid,
            pid: self.pid,
            job_bytes: short(&self.job),
            name_bytes: short(&self.name),
            net: self.net,
            pids: self.pids,
            boot: self.boot,
            place: self.place,
            nonce: self.nonce,
        };
        let bytes = [wire.as_bytes(), self.job.as_bytes(), self.name.as_bytes()].concat();
        Address::new(&bytes).expect("88 + 128 + 64 bytes fit an address")
    }

    /// Reads an address.
    ///
    /// # Errors
    /// Not an address of this transport, damaged, or of a process that ours cannot talk to at all.
    pub(crate) fn read(address: &Address) -> Result<SmAddress, LinkError> {
        let bytes = address.as_bytes();
        let (wire, rest) = AddressWire::read_from_prefix(bytes)
            .map_err(|_| bad(format!("{} bytes, at least 88 expected", bytes.len())))?;
        if wire.magic != MAGIC {
            return Err(bad(format!("it starts with {:02x?}", wire.magic)));
        }
        check_kind(wire.order, wire.version, wire.word_bytes)?;
        let (job, name) = (usize::from(wire.job_bytes), usize::from(wire.name_bytes));
        if job > JOB_BYTES || name > NAME_BYTES || rest.len() != job + name {
            return Err(bad(format!("{} bytes of names, {job} + {name} announced", rest.len())));
        }
        let text = |bytes: &[u8]| {
            String::from_utf8(bytes.to_vec()).map_err(|_| bad("a name that is not UTF-8"))
        };
        Ok(SmAddress {
            uid: wire.uid,
            pid: wire.pid,
            net: wire.net,
            pids: wire.pids,
            boot: wire.boot,
            place: wire.place,
            nonce: wire.nonce,
            job: text(&rest[..job])?,
            name: text(&rest[job..])?,
        })
    }

    /// Whether the process behind `self` can be reached from the one behind `own`.
    ///
    /// # Errors
    /// It cannot be reached; the reason says why.
    pub(crate) fn check_reachable(&self, own: &SmAddress) -> Result<(), LinkError> {
        let away = |reason: String| Err(LinkError::Unreachable { reason });
        if self.job != own.job {
            return away(format!("it belongs to job {:?}, not {:?}", self.job, own.job));
        }
        if self.boot != own.boot {
            return away("it runs on another host".to_owned());
        }
        if self.net != own.net {
            return away("it runs in another network namespace".to_owned());
        }
        if self.uid != own.uid {
            return away(format!("it runs as user {}, not {}", self.uid, own.uid));
        }
        Ok(())
    }

    /// Whether the process behind `own` sees the one behind `self` under the number `pid`, as far as the
    /// two can know: 0 is one that it cannot see.
    pub(crate) fn may_have(&self, own: &SmAddress, pid: i32) -> bool {
        let comparable = self.pids == own.pids && self.pids != 0;
        !comparable || u32::try_from(pid) == Ok(self.pid)
    }

    /// The abstract name of its listener.
    pub(crate) fn meeting_place(&self) -> String {
        self.place.iter().fold("gapless-sm/".to_owned(), |mut name, byte| {
            // Writing to a string cannot fail.
            let _ = write!(name, "{byte:02x}");
            name
        })
    }
}

fn check_kind(order: u16, version: u16, word_bytes: u32) -> Result<(), LinkError> {
    let differs = |what: String| Err(LinkError::Incompatible { what });
    if order == ORDER.swap_bytes() {
        return differs("its byte order is the other one".to_owned());
    }
    if order != ORDER {
        return Err(bad(format!("a byte order mark of {order:#06x}")));
    }
    if version != VERSION {
        return differs(format!("it speaks version {version}, we speak {VERSION}"));
    }
    if word_bytes != WORD_BYTES {
        return differs(format!("its words have {word_bytes} bytes, ours {WORD_BYTES}"));
    }
    Ok(())
}

/// Fills `bytes` with randomness.
///
/// # Errors
/// The system has none.
pub(crate) fn random(bytes: &mut [u8]) -> Result<(), LinkError> {
    use std::io::Read as _;
    std::fs::File::open("/dev/urandom")
        .and_then(|mut source| source.read_exact(bytes))
        .map_err(|e| crate::system("reading /dev/urandom", e))
}

/// A greeting on the wire; the descriptor of the sender's lane comes along.
#[derive(Clone, Copy, Debug, FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C)]
struct HelloWire {
    packet: u8,
    /// 1 if the sender is registered for asymmetric fences.
    asymmetric: u8,
    order: u16,
    version: u16,
    classes: u16,
    word_bytes: u32,
    ring_lines: u32,
    from: Nonce,
    to: Nonce,
    probe_address: u64,
    probe_value: u64,
    class: [[u32; 2]; CLASSES],
    number: u32,
    /// Whether there is a number: 1 or 0.
    numbered: u32,
}

const _: () = assert!(size_of::<HelloWire>() == 104);

/// A greeting.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Hello {
    /// The sender.
    pub(crate) from: Nonce,
    /// The receiver: proof that the sender has its address.
    pub(crate) to: Nonce,
    /// What lies where in the sender's lane.
    pub(crate) geometry: Geometry,
    /// Whether the sender's fences may be left to sleepers.
    pub(crate) asymmetric: bool,
    /// Where in the sender's memory a known word lies, and what it is; address 0: no single copy.
    pub(crate) probe: (u64, u64),
    /// By which the receiver may look up the sender's address.
    pub(crate) number: Option<u32>,
}

impl Hello {
    pub(crate) fn packet(&self) -> impl AsRef<[u8]> + use<> {
        let small = |n: usize| u32::try_from(n).expect("the geometry bounds it");
        let mut class = [[0; 2]; CLASSES];
        for (wire, placed) in class.iter_mut().zip(self.geometry.classes()) {
            *wire = [small(placed.bytes), small(placed.count)];
        }
        let wire = HelloWire {
            packet: HELLO,
            asymmetric: u8::from(self.asymmetric),
            order: ORDER,
            version: VERSION,
            classes: u16::try_from(self.geometry.classes().len()).expect("at most 4"),
            word_bytes: WORD_BYTES,
            ring_lines: small(self.geometry.ring_lines()),
            from: self.from,
            to: self.to,
            probe_address: self.probe.0,
            probe_value: self.probe.1,
            class,
            number: self.number.unwrap_or(0),
            numbered: u32::from(self.number.is_some()),
        };
        <[u8; size_of::<HelloWire>()]>::try_from(wire.as_bytes()).expect("its own size")
    }

    /// Reads a greeting.
    ///
    /// # Errors
    /// It is none, or one from an end that does not fit ours.
    pub(crate) fn read(packet: &[u8]) -> Result<Hello, LinkError> {
        let corrupt = |what: String| LinkError::Corrupt { what };
        let wire = HelloWire::read_from_bytes(packet)
            .map_err(|_| corrupt(format!("a greeting of {} bytes", packet.len())))?;
        if wire.packet != HELLO {
            return Err(corrupt(format!("a packet of kind {} before the greeting", wire.packet)));
        }
        check_kind(wire.order, wire.version, wire.word_bytes)?;
        let classes = wire
            .class
            .get(..usize::from(wire.classes))
            .ok_or_else(|| corrupt(format!("{} classes of slots", wire.classes)))?;
        let classes: Vec<_> = classes
            .iter()
            .map(|&[bytes, count]| SlotClass { bytes: bytes as usize, count: count as usize })
            .collect();
        let geometry = Geometry::new(wire.ring_lines as usize, &classes).map_err(corrupt)?;
        Ok(Hello {
            from: wire.from,
            to: wire.to,
            geometry,
            asymmetric: wire.asymmetric != 0,
            probe: (wire.probe_address, wire.probe_value),
            number: (wire.numbered == 1).then_some(wire.number),
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn addresses_survive_the_way() {
        let address = SmAddress::own("job 7", "rank 3").unwrap();
        assert_eq!(SmAddress::read(&address.to_bytes()).unwrap(), address);
        assert!(address.check_reachable(&address).is_ok());
        assert!(address.meeting_place().len() < 100);
        let own = i32::try_from(std::process::id()).unwrap();
        assert!(address.may_have(&address, own) && !address.may_have(&address, own + 1));
        // What everybody can read in /proc/net/unix.
        let secret: String = address.nonce.iter().map(|byte| format!("{byte:02x}")).collect();
        assert!(!address.meeting_place().contains(&secret) && address.place != address.nonce);
        let elsewhere = SmAddress { pids: address.pids + 1, ..address.clone() };
        assert!(elsewhere.may_have(&address, 0));
        let long = SmAddress::own(&"j".repeat(JOB_BYTES), &"n".repeat(NAME_BYTES)).unwrap();
        assert_eq!(SmAddress::read(&long.to_bytes()).unwrap(), long);
        assert!(SmAddress::own(&"j".repeat(JOB_BYTES + 1), "").is_err());
    }

    #[test]
    fn others_are_told_apart() {
        let own = SmAddress::own("job", "a").unwrap();
        for (other, what) in [
            (SmAddress { boot: [9; 16], ..own.clone() }, "host"),
            (SmAddress { net: own.net + 1, ..own.clone() }, "namespace"),
            (SmAddress { uid: own.uid + 1, ..own.clone() }, "user"),
            (SmAddress { job: "other".to_owned(), ..own.clone() }, "job"),
        ] {
            let error = other.check_reachable(&own).unwrap_err();
            assert!(matches!(&error, LinkError::Unreachable { reason } if reason.contains(what)));
        }
    }

    #[test]
    fn every_damaged_address_is_refused_or_read() {
        let address = SmAddress::own("job", "name").unwrap();
        let good = address.to_bytes();
        for at in 0..good.as_bytes().len() {
            for flip in [1u8, 0x80, 0xFF] {
                let mut bytes = good.as_bytes().to_vec();
                bytes[at] ^= flip;
                let _ = SmAddress::read(&Address::new(&bytes).unwrap());
            }
            let cut = Address::new(&good.as_bytes()[..at]).unwrap();
            assert!(matches!(SmAddress::read(&cut), Err(LinkError::BadAddress { .. })));
        }
        let mut swapped = good.as_bytes().to_vec();
        swapped.swap(4, 5);
        let swapped = SmAddress::read(&Address::new(&swapped).unwrap());
        assert!(matches!(swapped, Err(LinkError::Incompatible { .. })));
    }

    #[test]
    fn greetings_survive_the_way_and_damage_is_refused() {
        let classes = [SlotClass { bytes: 64, count: 2 }, SlotClass { bytes: 128, count: 1 }];
        let hello = Hello {
            from: [1; 16],
            to: [2; 16],
            geometry: Geometry::new(32, &classes).unwrap(),
            asymmetric: true,
            probe: (64, 65),
            number: Some(7),
        };
        let unnumbered = Hello { number: None, ..hello.clone() };
        assert_eq!(Hello::read(unnumbered.packet().as_ref()).unwrap(), unnumbered);
        let packet = hello.packet();
        let packet = packet.as_ref();
        assert_eq!(Hello::read(packet).unwrap(), hello);
        assert!(Hello::read(&packet[1..]).is_err());
        for at in [0, 2, 4, 6, 8, 12, 64, 70] {
            let mut bad = packet.to_vec();
            bad[at] ^= 0x55;
            assert!(Hello::read(&bad).is_err(), "byte {at}");
        }
    }
}
