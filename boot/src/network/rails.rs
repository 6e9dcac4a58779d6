//! Several rails of TCP: interfaces that the user named, a transport each, and which of two processes' rails belong
//! together. Pure functions.

use super::TCP;
use gapless_btl::Address;
use gapless_btl_tcp::ListenAddress;
use std::collections::BTreeSet;
use std::fmt::Write;
use std::net::IpAddr;

/// What rails over TCP are called in a process, in the order of its interfaces.
pub(super) const NAMES: [&str; 8] = [TCP, "tcp1", "tcp2", "tcp3", "tcp4", "tcp5", "tcp6", "tcp7"];

/// Addresses that lie in one network on both hosts say that two rails belong together: a word for each network of a
/// rail, the same on every host there.
pub(super) fn networks(places: &[ListenAddress]) -> Vec<String> {
    let word = |place: &ListenAddress| {
        let bits = u32::from(place.prefix_bits);
        match place.address {
            IpAddr::V4(v4) => {
                let mask = u32::MAX.checked_shl(32 - bits.min(32)).unwrap_or(0);
                format!("{:08x}-{bits}", v4.to_bits() & mask)
            }
            IpAddr::V6(v6) => {
                let mask = u128::MAX.checked_shl(128 - bits.min(128)).unwrap_or(0);
                format!("{:032x}-{bits}", v6.to_bits() & mask)
            }
        }
    };
    places.iter().map(word).collect()
}

/// The networks of a rail, behind its name: `tcp1/0a000000-24/…`.
pub(super) fn label(name: &str, places: &[ListenAddress]) -> String {
    networks(places).iter().fold(name.to_owned(), |mut label, network| {
        let _ = write!(label, "/{network}");
        label
    })
}

/// A rail over TCP, as its process publishes it.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Rail<'a> {
    networks: Vec<&'a str>,
}

impl<'a> Rail<'a> {
    /// `None`: it is a rail of another kind.
    fn read(label: &'a str) -> Option<Rail<'a>> {
        let mut words = label.split('/');
        NAMES.contains(&words.next()?).then(|| Rail { networks: words.collect() })
    }
}

/// Which rails belong together: those in one network, in the order of their numbers, and then the rest in that order.
/// Both ends see that alike.
fn pairs(own: &[Rail<'_>], theirs: &[Rail<'_>]) -> Vec<(usize, usize)> {
    let networks = |rails: &[Rail<'_>]| -> BTreeSet<String> {
        rails.iter().flat_map(|rail| rail.networks.iter().map(|&it| it.to_owned())).collect()
    };
    let common: Vec<String> = networks(own).intersection(&networks(theirs)).cloned().collect();
    let mut pairs: Vec<(usize, usize)> = Vec::new();
    let every = common.iter().map(Some).chain([None]);
    for network in every {
        let left = |rails: &[Rail<'_>], taken: &dyn Fn(usize) -> bool| -> Vec<usize> {
            let fits = |rail: &Rail<'_>| {
                network.is_none_or(|network| rail.networks.iter().any(|it| it == network))
            };
            (0..rails.len()).filter(|&at| !taken(at) && fits(&rails[at])).collect()
        };
        let ours = left(own, &|at| pairs.iter().any(|pair| pair.0 == at));
        let others = left(theirs, &|at| pairs.iter().any(|pair| pair.1 == at));
        pairs.extend(ours.into_iter().zip(others));
    }
    pairs.sort_unstable();
    pairs
}

/// The addresses of a peer by the names that the rails have here which they belong to. `own` are the labels of this
/// process; what is not TCP stays. Gives how many are TCP, too.
pub(super) fn paired(
    own: &[String],
    theirs: Vec<(String, Address)>,
) -> (Vec<(String, Address)>, usize) {
    let ours: Vec<(&str, Rail<'_>)> = own
        .iter()
        .filter_map(|label| Some((label.split('/').next()?, Rail::read(label)?)))
        .collect();
    let (tcp, mut found): (Vec<_>, Vec<_>) =
        theirs.into_iter().partition(|(label, _)| Rail::read(label).is_some());
    let own: Vec<Rail<'_>> = ours.iter().map(|(_, rail)| rail.clone()).collect();
    let others: Vec<Rail<'_>> = tcp.iter().filter_map(|(label, _)| Rail::read(label)).collect();
    let pairs = pairs(&own, &others);
    for &(here, there) in &pairs {
        found.push((ours[here].0.to_owned(), tcp[there].1.clone()));
    }
    (found, pairs.len())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn place(text: &str) -> ListenAddress {
        let (address, bits) = text.split_once('/').unwrap();
        ListenAddress { address: address.parse().unwrap(), prefix_bits: bits.parse().unwrap() }
    }

    fn labels(rails: &[&[&str]]) -> Vec<String> {
        let places = |rail: &&[&str]| rail.iter().map(|text| place(text)).collect::<Vec<_>>();
        rails.iter().zip(NAMES).map(|(rail, name)| label(name, &places(rail))).collect()
    }

    /// Which rail of the other each rail of one belongs to.
    fn found(one: &[String], other: &[String]) -> Vec<(String, u8)> {
        let addresses = (0..).zip(other);
        let address = |(at, label): (u8, &String)| (label.clone(), Address::new(&[at]).unwrap());
        let (paired, count) = paired(one, addresses.map(address).collect());
        assert_eq!(count, paired.len());
        paired.into_iter().map(|(name, it)| (name, it.as_bytes()[0])).collect()
    }

    #[test]
    fn rails_of_one_network_belong_together() {
        let one = labels(&[&["10.1.0.1/24", "fd00:1::1/64"], &["10.2.0.1/24"], &["10.3.0.1/16"]]);
        let other = labels(&[&["10.2.0.7/24"], &["10.3.9.9/16"], &["10.1.0.9/24"]]);
        assert_eq!(one[1], "tcp1/0a020000-24");
        let word = |name: &str, at| (name.to_owned(), at);
        assert_eq!(found(&one, &other), [word("tcp", 2), word("tcp1", 0), word("tcp2", 1)]);
        assert_eq!(found(&other, &one), [word("tcp", 1), word("tcp1", 2), word("tcp2", 0)]);
    }

    #[test]
    fn both_ends_pair_alike() {
        let sets = [
            labels(&[&["10.1.0.1/24"], &["10.1.0.2/24"], &["10.9.0.1/24"]]),
            labels(&[&["10.1.0.3/24", "10.9.0.3/24"], &["10.1.0.4/24"]]),
            labels(&[&["172.16.0.1/12"], &["10.1.0.5/24"], &["0.0.0.1/0"], &["::1/0"]]),
            labels(&[&["10.1.0.6/25"]]),
        ];
        for (one, other) in sets.iter().flat_map(|one| sets.iter().map(move |it| (one, it))) {
            let number =
                |name: &str| u8::try_from(NAMES.iter().position(|it| *it == name).unwrap());
            let here = found(one, other);
            let mut there: Vec<(String, u8)> = found(other, one)
                .iter()
                .map(|(name, at)| (NAMES[usize::from(*at)].to_owned(), number(name).unwrap()))
                .collect();
            there.sort_unstable();
            assert_eq!(here, there, "{one:?} and {other:?}");
            assert_eq!(here.len(), one.len().min(other.len()));
        }
    }

    #[test]
    fn rails_of_another_kind_stay() {
        let address = Address::new(&[7]).unwrap();
        let theirs = vec![("ib".to_owned(), address.clone()), ("tcp".to_owned(), address.clone())];
        assert_eq!(paired(&labels(&[&["10.0.0.1/8"]]), theirs.clone()), (theirs.clone(), 1));
        assert_eq!(paired(&["ib".to_owned()], theirs), (vec![("ib".to_owned(), address)], 0));
    }
}
