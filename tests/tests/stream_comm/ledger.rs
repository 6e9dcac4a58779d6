//! Blocks of a GPU, which all communicators there take from one ledger.

use super::{Rank, launcher};
use gapless::{CudaDriver, Error, StreamComm, StreamError, StreamOptions};
use gapless_tests::launcher::Member;

/// Ranks of communicators without a common process: who shares a GPU finds it full, and has room when that was given back.
#[test]
fn all_communicators_take_their_blocks_from_one_ledger() {
    let Some(mut member) = Member::of_launcher() else {
        return launcher("ledger::all_communicators_take_their_blocks_from_one_ledger", None);
    };
    let rank = Rank::new(&mut member);
    let alone = rank.comm().split(Some(rank.comm().rank()), 0).unwrap().unwrap();
    let options = StreamOptions { blocks: 64, ..StreamOptions::default() };
    let full = |on: Result<StreamComm<'_>, Error>| match on {
        Err(Error::Stream(StreamError::NoRoom { rank: 0, wanted, room, others })) => {
            assert!(wanted > room && others >= wanted - 64, "{wanted} of {room}, {others}");
            true
        }
        Ok(_) => false,
        Err(error) => panic!("{error}"),
    };
    let (ours, first) = (rank.world.rank(), rank.world.rank() == 0);
    let mut all = Vec::new();
    if first {
        for _ in 0..64 {
            match alone.on_with(&rank.stream, options) {
                Ok(on) => all.push(on),
                refused => {
                    assert!(full(refused));
                    break;
                }
            }
        }
        assert!(!all.is_empty() && all.len() < 64);
    }
    rank.comm().barrier().unwrap();
    let shares = ours % CudaDriver::load().unwrap().devices() == 0;
    if !first {
        assert_eq!(full(alone.on_with(&rank.stream, options)), shares, "rank {ours}");
    }
    rank.comm().barrier().unwrap();
    drop(all);
    rank.comm().barrier().unwrap();
    for turn in 0..rank.comm().size() {
        if turn == ours {
            assert!(!full(alone.on_with(&rank.stream, options)), "rank {ours}");
        }
        rank.comm().barrier().unwrap();
    }
    rank.world.finalize().unwrap();
}
