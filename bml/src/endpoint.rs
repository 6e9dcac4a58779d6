//! A peer: which rails reach it, and which one carries its messages.

use crate::bundle::Bundle;
use gapless_btl::{LinkError, PeerId};

/// Whether a peer can be reached: not known yet, up, or lost.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum PeerState {
    /// Neither connected nor introduced.
    Unknown,
    /// Connected, introduced or in a [directory](crate::Directory); its link stands, is about to, or is made when it is
    /// needed.
    Up,
    /// Gone, for this reason.
    Lost(LinkError),
}

/// One path to a peer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Path {
    /// Index of the rail.
    pub(crate) rail: usize,
    /// The peer's name there.
    pub(crate) peer: PeerId,
    /// Whether anything was reserved, sent or received here: what was in flight when it dies is
    /// then unknown.
    pub(crate) used: bool,
    /// It was a part of a bundle: its messages have numbers.
    pub(crate) numbered: bool,
}

impl Path {
    /// One that nobody has used yet.
    pub(crate) fn new(rail: usize, peer: PeerId) -> Path {
        Path { rail, peer, used: false, numbered: false }
    }
}

/// What the end of a path means.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Ending {
    /// There was no such path (any more).
    Nothing,
    /// Another path takes over, nothing is missing.
    Survived,
    /// The peer is lost; the paths that remain.
    Lost(Vec<Path>),
}

/// All paths to one peer, best first.
#[derive(Debug)]
pub(crate) struct Endpoint {
    state: PeerState,
    /// Live paths, best first, ordered rails before others. Empty unless up, and if there is a bundle.
    paths: Vec<Path>,
    /// Several rails that are used together.
    pub(crate) bundle: Option<Box<Bundle>>,
}

impl Endpoint {
    pub(crate) fn new() -> Endpoint {
        Endpoint { state: PeerState::Unknown, paths: Vec::new(), bundle: None }
    }

    pub(crate) fn state(&self) -> &PeerState {
        &self.state
    }

    /// It is in a directory, from which its addresses come when they are needed.
    pub(crate) fn list(&mut self) {
        if self.state == PeerState::Unknown {
            self.state = PeerState::Up;
        }
    }

    /// Whether its addresses have not been needed so far.
    #[inline]
    pub(crate) fn is_listed(&self) -> bool {
        self.paths.is_empty() && self.bundle.is_none() && self.state == PeerState::Up
    }

    #[inline]
    pub(crate) fn paths(&self) -> &[Path] {
        &self.paths
    }

    /// The path that carries messages. `None` if a bundle does (several rails that are used together), or nothing.
    #[inline]
    pub(crate) fn carrier(&self) -> Option<&Path> {
        self.paths.first()
    }

    #[inline]
    pub(crate) fn carrier_mut(&mut self) -> Option<&mut Path> {
        self.paths.first_mut()
    }

    /// Takes a new list of paths, best first. A used path stays used, and a carrier in use stays the carrier, so that
    /// messages never overtake each other on different rails.
    pub(crate) fn set_paths(&mut self, mut paths: Vec<Path>) {
        for path in &mut paths {
            if let Some(old) = self.paths.iter().find(|old| old.rail == path.rail) {
                path.used = old.used;
            }
        }
        if let Some(carrier) = self.carrier().filter(|carrier| carrier.used)
            && let Some(at) = paths.iter().position(|path| path.rail == carrier.rail)
        {
            paths[..=at].rotate_right(1);
        }
        self.paths = paths;
        self.state = PeerState::Up;
    }

    /// Uses these rails together.
    pub(crate) fn set_bundle(&mut self, bundle: Bundle) {
        self.paths.clear();
        self.bundle = Some(Box::new(bundle));
        self.state = PeerState::Up;
    }

    /// All rails that lead there, best first, and the peer's names on them.
    pub(crate) fn all_paths(&self) -> impl Iterator<Item = Path> + '_ {
        let strands = self.bundle.as_deref().map_or(&[][..], |bundle| bundle.strands.as_slice());
        let numbered =
            |it: &crate::bundle::Strand| Path { numbered: true, ..Path::new(it.rail, it.peer) };
        self.paths.iter().copied().chain(strands.iter().map(numbered))
    }

    /// A message came in over `rail`; whether it is to be delivered.
    #[inline]
    pub(crate) fn heard(&mut self, rail: usize) -> bool {
        match self.paths.iter_mut().find(|path| path.rail == rail) {
            Some(path) => {
                path.used = true;
                true
            }
            None => false,
        }
    }

    /// The link over `rail` to whom it calls `peer` has ended. It may be another one than messages go over: one by which
    /// numbers are changed.
    pub(crate) fn end_path(&mut self, (rail, peer): (usize, PeerId), error: &LinkError) -> Ending {
        let is_it = |path: &Path| (path.rail, path.peer) == (rail, peer);
        let Some(at) = self.paths.iter().position(is_it) else {
            return Ending::Nothing;
        };
        let ended = self.paths.remove(at);
        if ended.used || self.paths.is_empty() {
            return Ending::Lost(self.lose(error.clone()));
        }
        Ending::Survived
    }

    /// Gives the peer up; the paths that were left.
    pub(crate) fn lose(&mut self, error: LinkError) -> Vec<Path> {
        self.state = PeerState::Lost(error);
        let left = self.all_paths().collect();
        self.paths.clear();
        left
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn path(rail: usize) -> Path {
        Path::new(rail, PeerId(0))
    }

    fn error() -> LinkError {
        LinkError::PeerGone { reason: "test".to_owned() }
    }

    #[test]
    fn an_unused_path_may_end_and_a_used_one_may_not() {
        let mut end = Endpoint::new();
        end.set_paths(vec![path(1), path(2)]);
        assert_eq!(end.end_path((7, PeerId(0)), &error()), Ending::Nothing);
        assert_eq!(end.end_path((1, PeerId(5)), &error()), Ending::Nothing, "another link");
        assert_eq!(end.end_path((1, PeerId(0)), &error()), Ending::Survived);
        assert_eq!(end.carrier().unwrap().rail, 2);
        assert!(end.heard(2));
        assert_eq!(end.end_path((2, PeerId(0)), &error()), Ending::Lost(vec![]));
        assert_eq!(end.state(), &PeerState::Lost(error()));
        assert_eq!(end.end_path((2, PeerId(0)), &error()), Ending::Nothing);
        assert!(!end.heard(2));
    }

    #[test]
    fn a_used_path_takes_the_peer_with_it_even_if_others_live() {
        let mut end = Endpoint::new();
        end.set_paths(vec![path(1), path(2)]);
        end.carrier_mut().unwrap().used = true;
        assert_eq!(end.end_path((1, PeerId(0)), &error()), Ending::Lost(vec![path(2)]));
    }

    #[test]
    fn a_carrier_in_use_stays() {
        let mut end = Endpoint::new();
        end.set_paths(vec![path(1)]);
        end.carrier_mut().unwrap().used = true;
        end.set_paths(vec![path(3), path(2), path(1)]);
        assert_eq!(end.paths().iter().map(|p| p.rail).collect::<Vec<_>>(), [1, 3, 2]);
        assert!(end.carrier().unwrap().used);
    }
}
