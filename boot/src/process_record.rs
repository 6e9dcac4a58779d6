//! What every process publishes about itself: a record by which peers check that they would understand its messages,
//! and the addresses of its transports. All texts are single words.

use crate::error::BootError;
use crate::processors::Processors;
use gapless_bml::Level;
use gapless_btl::Address;
use std::collections::BTreeSet;

/// Raised whenever messages of the layers above the transports change.
const WIRE_VERSION: u32 = 22;

/// The digest of the table of collectives.
const TABLE: &str = "collectives";

/// What no other host has: the number of the start of its system, and that of the namespace of its sockets.
const HOST: &str = "host";

/// The processors that a process may run on.
const PROCESSORS: &str = "processors";

/// Whether the process has TCP.
const NETWORK: &str = "network";

/// Whether it encrypts what goes to other hosts: `on` or `off`.
const ENCRYPTION: &str = "encryption";

/// Whether a process has a transport to other hosts of ours.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Network {
    /// It may not use one.
    No,
    /// It can, for peers of other hosts.
    Able,
    /// It has no other way to any peer.
    Wanted,
}

impl Network {
    const ALL: [(Network, &str); 3] =
        [(Network::No, "no"), (Network::Able, "able"), (Network::Wanted, "wanted")];

    fn word(self) -> &'static str {
        Network::ALL.iter().find(|(it, _)| *it == self).map_or("", |(_, word)| word)
    }
}

/// What must be the same at both ends, by name.
fn traits() -> Vec<(&'static str, String)> {
    let endian = if cfg!(target_endian = "little") { "little" } else { "big" };
    let sizes = [
        size_of::<usize>(),
        size_of::<std::ffi::c_long>(),
        size_of::<std::ffi::c_int>(),
        size_of::<std::ffi::c_short>(),
    ];
    let sizes: Vec<String> = sizes.iter().map(ToString::to_string).collect();
    vec![
        ("wire-version", WIRE_VERSION.to_string()),
        ("endianness", endian.to_owned()),
        ("type-sizes", sizes.join("-")),
        ("architecture", std::env::consts::ARCH.to_owned()),
    ]
}

/// The record of a process with this digest of its table of collectives.
pub fn write(table: &str, network: Network, encrypts: bool) -> String {
    let (system, allowed) = (Processors::here(), Processors::allowed());
    let rest = [
        (TABLE, table.to_owned()),
        (PROCESSORS, in_hexadecimal(&set(&allowed))),
        (HOST, own_host()),
        (NETWORK, network.word().to_owned()),
        (ENCRYPTION, if encrypts { "on" } else { "off" }.to_owned()),
    ];
    let groups = Level::INSIDE.map(|level| {
        let group = system.common(level, &allowed).map(|group| group.number.to_string());
        (level.name(), group.unwrap_or_default())
    });
    let traits = traits().into_iter().chain(rest).chain(groups);
    let words: Vec<String> = traits.map(|(name, value)| format!("{name}:{value}")).collect();
    words.join(",")
}

/// A record in three parts: what the process is, where on its host it is kept, and its host.
pub fn parts(record: &str) -> [String; 3] {
    let mut parts = [(); 3].map(|()| String::new());
    for text in record.split(',') {
        let name = text.split_once(':').map_or("", |(name, _)| name);
        let is_binding =
            name == PROCESSORS || Level::INSIDE.iter().any(|level| level.name() == name);
        let at = match name {
            HOST => 2,
            _ if is_binding => 1,
            _ => 0,
        };
        let part = &mut parts[at];
        if !part.is_empty() {
            part.push(',');
        }
        part.push_str(text);
    }
    parts
}

/// Processors, a bit each, the lowest first.
fn set(processors: &[usize]) -> Vec<u8> {
    let mut bytes = vec![0; processors.last().map_or(0, |last| last / 8 + 1)];
    processors.iter().for_each(|processor| bytes[processor / 8] |= 1 << (processor % 8));
    bytes
}

/// Whether a process of this host with this record may run on processors that this thread may use. If launchers bind
/// processes to separate processors, those do not disturb each other, however few each of them has.
pub fn shares_processors(record: &str) -> bool {
    let theirs = word(record, PROCESSORS).and_then(from_hexadecimal).unwrap_or_default();
    share(&set(&Processors::allowed()), &theirs)
}

fn share(ours: &[u8], theirs: &[u8]) -> bool {
    let unknown = ours.is_empty() || theirs.is_empty();
    unknown || ours.iter().zip(theirs).any(|(ours, theirs)| ours & theirs != 0)
}

/// Whether a process with this record has the table of collectives with this digest.
pub fn has_table(record: &str, table: &str) -> bool {
    word(record, TABLE) == Some(table)
}

/// The host of a process with this record, if it says so.
pub fn host(record: &str) -> Option<&str> {
    word(record, HOST).filter(|host| !host.is_empty())
}

/// The socket, NUMA node or cache, of its host, whose processors a process with this record is kept on, if it says so.
pub fn group(record: &str, level: Level) -> Option<usize> {
    word(record, level.name())?.parse().ok()
}

/// Nothing if the system does not tell.
fn own_host() -> String {
    let text = std::fs::read_to_string("/proc/sys/kernel/random/boot_id").unwrap_or_default();
    let boot: String = text.chars().filter(char::is_ascii_hexdigit).collect();
    match rustix::fs::stat("/proc/self/ns/net") {
        Ok(sockets) if !boot.is_empty() => format!("{boot}-{}", sockets.st_ino),
        _ => String::new(),
    }
}

/// Whether processes with these records are known to be on different hosts.
pub fn are_apart(one: &str, other: &str) -> bool {
    matches!((host(one), host(other)), (Some(one), Some(other)) if one != other)
}

/// Whether processes with these records may be on one machine, be it with other sockets.
pub fn share_machine(one: &str, other: &str) -> bool {
    let boot = |record| host(record).and_then(|host: &str| host.split('-').next());
    !matches!((boot(one), boot(other)), (Some(one), Some(other)) if one != other)
}

/// Whether all processes of a job open their transports to other hosts, which all of them decide alike: some are on
/// different hosts, or one has no other transport of ours. `kinds` and `hosts` are those of all records.
pub fn need_network<'c>(
    kinds: impl Iterator<Item = &'c str> + Clone,
    hosts: impl Iterator<Item = &'c str>,
) -> bool {
    let mut networks = kinds.map(network);
    let hosts: BTreeSet<&str> = hosts.filter_map(host).collect();
    let apart = hosts.len() > 1;
    networks.any(|it| it == Network::Wanted || (apart && it == Network::Able))
}

/// What a process with this record has.
pub fn network(record: &str) -> Network {
    let word = word(record, NETWORK);
    let known = Network::ALL.iter().find(|(_, name)| word == Some(name));
    known.map_or(Network::No, |(network, _)| *network)
}

/// Checks that all processes that may have transports to other hosts encrypt, or that none of them does. All processes
/// that may not learn of it, too: they would wait for the others. `kinds` are those of all records, each with its first
/// rank.
///
/// # Errors
/// They do not agree: the first rank of those that differ from this process, whose record is `own`.
pub fn check_encryption<'c>(
    own: &str,
    kinds: impl Iterator<Item = (u32, &'c str)>,
) -> Result<(), BootError> {
    let mut said = Vec::new();
    for (rank, kind) in kinds.filter(|(_, kind)| network(kind) != Network::No) {
        said.push((rank, word(kind, ENCRYPTION).ok_or_else(|| bad(rank, "record", kind))?));
    }
    if said.windows(2).all(|pair| pair[0].1 == pair[1].1) {
        return Ok(());
    }
    let ours = word(own, ENCRYPTION).unwrap_or_default();
    let other = said.iter().find(|(_, theirs)| *theirs != ours);
    other.map_or(Ok(()), |&(rank, theirs)| {
        let (what, theirs) = (ENCRYPTION.to_owned(), shorten(theirs));
        Err(BootError::Incompatible { rank, what, theirs, ours: ours.to_owned() })
    })
}

fn word<'a>(record: &'a str, name: &str) -> Option<&'a str> {
    let mut words = record.split(',').filter_map(|word| word.split_once(':'));
    words.find(|(known, _)| *known == name).map(|(_, value)| value)
}

/// Checks a peer's record against ours.
pub fn check(rank: u32, record: &str) -> Result<(), BootError> {
    let find = |name: &str| word(record, name);
    for (what, ours) in traits() {
        let theirs = find(what).ok_or_else(|| bad(rank, "record", record))?;
        if theirs != ours {
            let (what, theirs) = (what.replace('-', " "), shorten(theirs));
            return Err(BootError::Incompatible { rank, what, theirs, ours });
        }
    }
    Ok(())
}

/// A transport's name and address in one word.
pub fn write_rail(name: &str, address: &Address) -> String {
    format!("{name}:{}", in_hexadecimal(address.as_bytes()))
}

/// Bytes as a word.
pub(crate) fn in_hexadecimal(bytes: &[u8]) -> String {
    use std::fmt::Write;
    bytes.iter().fold(String::new(), |mut digits, byte| {
        let _ = write!(digits, "{byte:02x}");
        digits
    })
}

/// The reverse.
pub(crate) fn from_hexadecimal(digits: &str) -> Option<Vec<u8>> {
    if !digits.is_ascii() || !digits.len().is_multiple_of(2) {
        return None;
    }
    let bytes = (0..digits.len()).step_by(2).map(|at| &digits[at..at + 2]);
    bytes.map(|byte| u8::from_str_radix(byte, 16).ok()).collect()
}

/// Reads the transport's name and address that [`write_rail`] has written.
pub fn read_rail(rank: u32, word: &str) -> Result<(String, Address), BootError> {
    let read = || {
        let (name, digits) = word.split_once(':')?;
        Some((name.to_owned(), Address::new(&from_hexadecimal(digits)?)?))
    };
    read().ok_or_else(|| bad(rank, "address", word))
}

/// The error that a peer published something that makes no sense.
#[must_use]
pub fn bad(rank: u32, what: &'static str, text: &str) -> BootError {
    BootError::BadRecord { rank, what, text: shorten(text) }
}

fn shorten(text: &str) -> String {
    text.chars().take(80).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn own_records_are_accepted() {
        assert!(check(3, &write("0a", Network::Able, false)).is_ok());
    }

    #[test]
    fn strangers_are_named() {
        let other =
            write("0a", Network::Able, false).replace("endianness:little", "endianness:middle");
        let error = check(7, &other).unwrap_err();
        let text = error.to_string();
        assert!(text.contains("rank 7") && text.contains("middle there"), "{text}");
        for record in [
            "",
            "x",
            "wire-version:22",
            &write("0a", Network::Able, false).replace("type-sizes", "t"),
        ] {
            assert!(
                matches!(check(1, record), Err(BootError::BadRecord { rank: 1, .. })),
                "{record}"
            );
        }
        let future =
            write("0a", Network::Able, false).replace("wire-version:22", "wire-version:999");
        assert!(matches!(check(1, &future), Err(BootError::Incompatible { .. })));
    }

    #[test]
    fn who_does_not_agree_on_encryption_is_named_by_all() {
        let record = |network, encrypts| write("0a", network, encrypts);
        let (able, none) = (|on| record(Network::Able, on), |on| record(Network::No, on));
        let check = |own: &String, records: &[(u32, &String)]| {
            check_encryption(own, records.iter().map(|(rank, record)| (*rank, record.as_str())))
        };
        let (on, off) = (&able(true), &able(false));
        assert_eq!(check(on, &[(0, on)]), Ok(()));
        assert_eq!(check(off, &[(0, off), (5, &record(Network::Wanted, false))]), Ok(()));
        let told = |own: &String| check(own, &[(0, on), (9, off)]).unwrap_err().to_string();
        assert_eq!(told(on), "rank 9 is incompatible: encryption is off there and on here");
        assert_eq!(told(off), "rank 0 is incompatible: encryption is on there and off here");
        // Who has nothing to encrypt does not count, and is told of the others.
        assert_eq!(check(on, &[(0, on), (9, &none(false))]), Ok(()));
        assert_eq!(check(&none(false), &[(0, on), (9, &none(false))]), Ok(()));
        assert_eq!(told(&none(true)), told(on));
        let bad = check(on, &[(4, &on.replace("encryption", "e"))]);
        assert!(matches!(bad, Err(BootError::BadRecord { rank: 4, .. })), "{bad:?}");
    }

    #[test]
    fn records_are_taken_apart_without_loss() {
        let record = write("0a", Network::Able, false);
        let [kind, binding, host_part] = parts(&record);
        assert!(check(1, &kind).is_ok() && network(&kind) == Network::Able);
        assert_eq!(shares_processors(&binding), shares_processors(&record));
        assert_eq!(group(&binding, Level::Numa), group(&record, Level::Numa));
        assert_eq!(host(&host_part), host(&record));
        let words: BTreeSet<&str> =
            [&*kind, &binding, &host_part].iter().flat_map(|it| it.split(',')).collect();
        assert_eq!(words, record.split(',').collect());
        assert_eq!(parts(""), ["", "", ""]);
    }

    #[test]
    fn processors_are_shared_unless_they_are_known_to_be_others() {
        assert!(shares_processors(&write("0a", Network::Able, false)), "ours with ourselves");
        assert!(shares_processors("wire-version:1") && shares_processors("processors:zz"));
        assert!(share(&[0b100], &[0b110, 1]) && share(&[], &[1]) && share(&[1], &[]));
        assert!(!share(&[0b100], &[0b011]) && !share(&[0, 1], &[1]));
        assert_eq!(from_hexadecimal(&in_hexadecimal(&[0, 0xfe, 255])), Some(vec![0, 0xfe, 255]));
        assert_eq!(set(&[0, 3, 9]), [0b1001, 0b10]);
        assert_eq!(set(&[]), [0u8; 0]);
    }

    #[test]
    fn records_say_on_which_groups_of_processors_a_process_is_kept() {
        let own = write("0a", Network::Able, false);
        let here = |level| Processors::here().common(level, &Processors::allowed());
        for level in Level::INSIDE {
            assert_eq!(group(&own, level), here(level).map(|group| group.number), "{level}");
        }
        assert_eq!(group("numa:3,l3:", Level::Numa), Some(3));
        assert_eq!(group("numa:3,l3:", Level::L3), None);
    }

    #[test]
    fn other_tables_of_collectives_are_noticed() {
        assert!(has_table(&write("0a", Network::Able, false), "0a"));
        assert!(
            !has_table(&write("0b", Network::No, false), "0a")
                && !has_table("wire-version:14", "0a")
        );
    }

    #[test]
    fn ports_are_opened_only_where_a_host_is_left() {
        let record = |host: &str, network: Network| {
            let (own, here) = (write("0a", network, false), own_host());
            own.replace(&format!("host:{here}"), &format!("host:{host}"))
        };
        let needed = |records: &[(&str, Network)]| {
            let records: Vec<String> = records.iter().map(|(host, it)| record(host, *it)).collect();
            let each = || records.iter().map(String::as_str);
            need_network(each(), each())
        };
        let (no, able, wanted) = (Network::No, Network::Able, Network::Wanted);
        assert!(!needed(&[("a-1", able), ("a-1", able)]) && !needed(&[("", able), ("a-1", able)]));
        assert!(needed(&[("a-1", able), ("a-2", no)]) && needed(&[("a-1", wanted), ("a-1", no)]));
        assert!(!needed(&[("a-1", no), ("b-1", no)]));
        assert!(needed(&[("", able), ("a-1", able), ("b-1", able)]));
        assert!(share_machine(&record("a-1", no), &record("a-2", no)) && share_machine("", ""));
        assert!(!share_machine(&record("a-1", no), &record("b-1", no)));
        assert!(!are_apart("", "") && are_apart(&record("a-1", no), &record("a-2", no)));
    }

    #[test]
    fn addresses_survive_as_words() {
        let address = Address::new(&[0, 1, 0xfe, 255]).unwrap();
        let word = write_rail("sm", &address);
        assert_eq!(word, "sm:0001feff");
        assert_eq!(read_rail(0, &word).unwrap(), ("sm".to_owned(), address));
        for word in ["", "sm", "sm:0", "sm:zz", "sm:é1"] {
            assert!(read_rail(5, word).is_err(), "{word}");
        }
    }
}
