//! Functions of users, registered while others put tasks of them.

use super::*;
use crate::device::mock_worker::UNFIT;
use gapless_mem::WorkerCode;

fn code(image: &[u8]) -> WorkerCode {
    // SAFETY: the mock worker runs none of it.
    unsafe { WorkerCode::new(image) }
}

/// The name of the function that ran, and the third argument.
type Ran = Arc<Mutex<Vec<(String, u64)>>>;

struct Shop {
    job: Job,
    ran: Ran,
    mock: Arc<MockWorker>,
}

impl Shop {
    fn new(way: TaskRunner, seed: Option<u64>) -> Shop {
        println!("{way:?}, seed {seed:?}");
        let config = Config { rings: way != TaskRunner::Messages, ..Config::default() };
        let job = Job::configured(2, seed, None, &config);
        let ran = Ran::default();
        let theirs = Arc::clone(&ran);
        let mock = MockWorker::new(move |task| {
            let name = task.name.as_deref().unwrap_or("own").to_owned();
            theirs.lock().unwrap().push((name, task.arguments[2]));
            Ok(())
        });
        let idle = (way == TaskRunner::Fleeting).then_some(Duration::from_micros(1));
        job.xtq(1).attach_worker(mock.clone(), Life { idle, longest: PATIENCE }).unwrap();
        job.xtq(1).register_queue(2, QueueOptions { capacity: 4096, width: 1 }).unwrap();
        Shop { job, ran, mock }
    }

    fn register(&self, code: &WorkerCode, name: &str) -> Result<(), XtqError> {
        // SAFETY: the mock worker touches no memory.
        unsafe { self.job.xtq(1).register_kernel(7, Kernel::of_worker_from(code, name, 24, 64)) }
    }

    fn put(&self, number: u64) -> PutHandle {
        let arguments = [0, 0, number].map(u64::to_le_bytes).concat();
        let put = Put::kernel(Rank(1), 7, 2, Launch::linear(1, 32, 24), arguments);
        self.job.xtq(0).put(put.acknowledged()).unwrap()
    }
}

#[test]
fn a_function_is_the_old_one_or_the_new_one_and_no_put_is_lost() {
    let ways = [
        (TaskRunner::Messages, None),
        (TaskRunner::Rings, None),
        (TaskRunner::Rings, Some(3)),
        (TaskRunner::Fleeting, Some(4)),
    ];
    for (way, seed) in ways {
        let mut shop = Shop::new(way, seed);
        // A function of each turn; every one of them is called the same in the table.
        let name = |turn: usize| format!("f{turn}");
        let one = code(b"code");
        shop.register(&one, "f0").unwrap();
        let (mut puts, mut number, mut oldest) = (Vec::new(), 0u64, Vec::new());
        for turn in 1..=12usize {
            for _ in 0..25 {
                puts.push(shop.put(number));
                oldest.push(turn - 1);
                number += 1;
                shop.job.step();
            }
            // These are in flight while it changes.
            shop.register(&one, &name(turn)).unwrap();
        }
        puts.push(shop.put(number));
        oldest.push(12);
        for put in &puts {
            assert_eq!((shop.job.outcome(put), put.accepted()), (Ok(()), Some(Ok(()))));
        }
        let ran = std::mem::take(&mut *shop.ran.lock().unwrap());
        let numbers: Vec<u64> = ran.iter().map(|(_, number)| *number).collect();
        assert_eq!(numbers, (0..=number).collect::<Vec<_>>(), "{way:?}");
        let turns: Vec<usize> = ran.iter().map(|(name, _)| name[1..].parse().unwrap()).collect();
        // What was put after a registration had returned runs that function or a later one; and none comes back.
        assert!(
            turns.iter().zip(&oldest).all(|(turn, oldest)| turn >= oldest),
            "{way:?}: {turns:?}"
        );
        assert!(turns.is_sorted() && turns.last() == Some(&12), "{way:?}: {turns:?}");
        assert_eq!(shop.mock.links(), 13);
        shop.job.settle();
    }
}

#[test]
fn what_does_not_link_is_told_with_the_linkers_words_and_the_old_one_stays() {
    let mut shop = Shop::new(TaskRunner::Rings, None);
    let good = code(b"good");
    shop.register(&good, "good").unwrap();
    let refused = shop.register(&code(UNFIT), "bad");
    let Err(XtqError::Target(TargetError::Device(error @ DeviceError::Link { .. }))) = refused
    else {
        panic!("{refused:?}")
    };
    assert_eq!(error.to_string(), "device code cannot be linked: bad is not to be had");
    let put = shop.put(1);
    assert_eq!(shop.job.outcome(&put), Ok(()));
    assert_eq!(*shop.ran.lock().unwrap(), [("good".to_owned(), 1)]);
}
