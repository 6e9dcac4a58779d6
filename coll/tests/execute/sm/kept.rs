//! Persistent collectives that have segments of their own.
use super::*;
use gapless_coll::{Algorithm, Executor, Method, Tree};

/// A persistent collective of all ranks, started once by messages.
struct Kept {
    all: Collective,
    executors: Vec<(u32, Executor)>,
}

impl Kept {
    fn new(sequencers: &[Sequencer], calls: &[Call<'_>], random: &mut Random) -> Kept {
        let flat = Algorithm::new(Method::Tree(Tree::Flat));
        let mut all = Collective::new(calls, &flat, (Arithmetic::Sum, &[Lie::Plain]), random);
        let tickets = sequencers.iter().map(|each| each.next_persistent().unwrap()).collect();
        let executors = all.with(tickets);
        Kept { all, executors }
    }

    fn openings(&self) -> Vec<Option<Opening>> {
        self.executors.iter().map(|(_, it)| Some(Opening::of_persistent(it))).collect()
    }
}

/// Goes on with openings, in another order at each rank, until all have ended.
fn segments(job: &mut Job, all: &mut [Vec<Option<Opening>>]) -> Vec<Vec<Option<SharedSegment>>> {
    let mut made: Vec<Vec<Option<SharedSegment>>> =
        all.iter().map(|each| each.iter().map(|_| None).collect()).collect();
    let count = all.len();
    for _ in 0..TURNS_MAX {
        for rank in 0..all[0].len() {
            for at in 0..count {
                let which = (at + rank) % count;
                let Some(opening) = &mut all[which][rank] else { continue };
                let pml = job.ranks[rank].as_mut().unwrap();
                if let Poll::Ready(segment) = opening.advance(pml, &HostEngine, &HostEngine) {
                    made[which][rank] = segment.unwrap();
                    all[which][rank] = None;
                }
            }
        }
        if all.iter().flatten().all(Option::is_none) {
            return made;
        }
        job.progress();
    }
    panic!("the openings do not end");
}

/// Each has rounds of its own: starts come in any order at each rank, and nothing of one is taken for another's.
#[test]
fn each_has_a_segment_and_starts_need_no_order() {
    const RANKS: usize = 3;
    let mut random = Random(60);
    let mut job = Job::new(3);
    let worlds = job.worlds();
    let sequencers = Job::sequencers(&worlds);
    let of = sum(Arithmetic::Sum);
    let lens = [8, 600, 40_000];
    let all = lens.map(|len| vec![Call::Allreduce { len, of, in_place: false }; RANKS]);
    let mut kept = all.each_ref().map(|calls| Kept::new(&sequencers, calls, &mut random));
    for each in &mut kept {
        assert!(job.finish(&mut each.executors).iter().all(|it| *it == Some(Ok(()))));
    }
    let mut openings: Vec<_> = kept.iter().map(Kept::openings).collect();
    let mut segments = segments(&mut job, &mut openings);
    for round in 1..20 {
        let mut left: Vec<Vec<usize>> = (0..RANKS).map(|_| (0..lens.len()).collect()).collect();
        let mut going = vec![Vec::new(); RANKS];
        for turn in 0.. {
            assert!(turn < TURNS_MAX, "{left:?} {going:?}");
            if left.iter().chain(&going).all(Vec::is_empty) {
                break;
            }
            let rank = usize::try_from(random.below(RANKS as u64)).unwrap();
            if !left[rank].is_empty() {
                let at = usize::try_from(random.below(left[rank].len() as u64)).unwrap();
                let which = left[rank].swap_remove(at);
                let segment = segments[which][rank].as_mut().expect("loopbacks map");
                kept[which].all.begin((rank, segment), round, &all[which][rank]).unwrap();
                going[rank].push(which);
            }
            let pml = job.ranks[rank].as_mut().unwrap();
            going[rank].retain(|which| {
                let segment = segments[*which][rank].as_mut().unwrap();
                match advance(segment, pml) {
                    Poll::Pending => true,
                    Poll::Ready(result) => {
                        assert_eq!(result, Ok(()), "round {round}");
                        false
                    }
                }
            });
        }
        kept.iter().for_each(|each| each.all.check());
    }
}

/// Who sleeps in one is woken by that one.
#[test]
fn sleepers_of_one_are_not_woken_by_another() {
    let mut random = Random(61);
    let mut job = Job::new(2);
    let worlds = job.worlds();
    let sequencers = Job::sequencers(&worlds);
    let calls = [Call::Bcast { root: 0, len: 8 }; 2];
    let mut kept = [0, 1].map(|_| Kept::new(&sequencers, &calls, &mut random));
    for each in &mut kept {
        job.finish(&mut each.executors);
    }
    let mut openings: Vec<_> = kept.iter().map(Kept::openings).collect();
    let mut segments = segments(&mut job, &mut openings);
    let wake_requests = [0, 1].map(|which: usize| {
        let segment = segments[which][1].as_mut().unwrap();
        kept[which].all.begin((1, segment), 1, &calls[1]).unwrap();
        assert_eq!(advance(segment, job.pml(1)), Poll::Pending);
        segment.arm(job.pml(1)).unwrap()
    });
    for which in [1, 0] {
        let segment = segments[which][0].as_mut().unwrap();
        kept[which].all.begin((0, segment), 1, &calls[0]).unwrap();
        assert_eq!(advance(segment, job.pml(0)), Poll::Ready(Ok(())));
        job.progress();
        let woken =
            wake_requests.map(|request| job.pml(1).collect(request).is_ok_and(|it| it.is_some()));
        assert_eq!(woken, if which == 1 { [false, true] } else { [true, false] });
        let segment = segments[which][1].as_mut().unwrap();
        assert_eq!(advance(segment, job.pml(1)), Poll::Ready(Ok(())));
        segment.close(job.pml(1));
    }
}

/// Ranks whose arguments do not fit together have none, and find that out at each start.
#[test]
fn ranks_that_do_not_agree_have_no_segment() {
    let mut random = Random(62);
    let mut job = Job::new(3);
    let worlds = job.worlds();
    let sequencers = Job::sequencers(&worlds);
    let mut calls = [Call::Bcast { root: 0, len: 8 }; 3];
    calls[2] = Call::Bcast { root: 1, len: 8 };
    let flat = Algorithm::new(Method::Tree(Tree::Flat));
    let schedules: Vec<_> = calls
        .iter()
        .enumerate()
        .map(|(rank, call)| gapless_coll::build(rank, &Locality::flat(3), call, &flat).unwrap())
        .collect();
    let mut all = Collective::new(
        &[Call::Bcast { root: 0, len: 8 }; 3],
        &flat,
        (Arithmetic::Sum, &[Lie::Plain]),
        &mut random,
    );
    all.schedules = schedules;
    let tickets = sequencers.iter().map(|each| each.next_persistent().unwrap()).collect();
    let executors = all.with(tickets);
    let mut kept = Kept { all, executors };
    let results = job.finish(&mut kept.executors);
    assert!(results.iter().all(|it| matches!(it, Some(Err(CollError::Differs { .. })))));
    let made = segments(&mut job, &mut [kept.openings()]);
    assert!(made[0].iter().all(Option::is_none));
}
