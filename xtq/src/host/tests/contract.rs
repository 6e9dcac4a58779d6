//! What all back ends share (`xtq-sim` has this file, too): from every initiator each task runs once, however full queues are and however long
//! payloads are, and all come to the same sums. (That they rewrite alike is in `sample.rs`, and tested by each.)

use super::scene::{SIMULATED, Scene, TaskRunner, all};
use super::*;

const INITIATORS: u32 = 8;

/// The vector of a rank: initiators have ranks from 1 on, and the target has one of its own.
fn vector(rank: u32, bytes: u32) -> Vec<u32> {
    (1..=bytes / 4).map(|at| at.wrapping_mul(0x9E37_79B9).rotate_left(rank)).collect()
}

fn add(sum: &mut [u32], more: impl IntoIterator<Item = u32>) {
    sum.iter_mut().zip(more).for_each(|(sum, more)| *sum = sum.wrapping_add(more));
}

/// What the target has in the end, and whether something was refused on the way.
fn by_way(way: TaskRunner, bytes: u32, queue: u32) -> (Vec<u32>, bool) {
    let mut scene = Scene::new(way, INITIATORS + 1, None);
    scene.register_queue(2, QueueOptions { capacity: queue, width: 1 }).unwrap();
    scene.post(4096);
    let mut handles = Vec::new();
    for initiator in 0..INITIATORS {
        let payload: Vec<u8> =
            vector(initiator + 1, bytes).into_iter().flat_map(u32::to_le_bytes).collect();
        let put = scene.task(0, &payload).retry(Retry::InAnyOrder).acknowledged();
        handles.push(scene.put_from(initiator as usize, put));
    }
    for handle in &handles {
        assert_eq!(scene.outcome(handle), Ok(()));
    }
    let mut sum = vector(0, bytes);
    for (_, payload) in scene.ran() {
        let (words, rest) = payload.as_chunks::<4>();
        assert!(rest.is_empty());
        add(&mut sum, words.iter().map(|word| u32::from_le_bytes(*word)));
    }
    (sum, handles.iter().any(|handle| handle.refusals() > 0))
}

#[test]
fn all_back_ends_come_to_the_same_sums_with_queues_of_any_length() {
    for (bytes, queue) in [(64, 1), (64, 64), (4096, 1), (4096, 64)] {
        let mut right = vector(0, bytes);
        (1..=INITIATORS).for_each(|rank| add(&mut right, vector(rank, bytes)));
        for way in all() {
            let (sum, refused) = by_way(way, bytes, queue);
            assert!(sum == right, "{way:?}, {bytes} B, queue of {queue}");
            assert!(refused || !SIMULATED || queue > 1, "{bytes} B: never full");
        }
    }
}
