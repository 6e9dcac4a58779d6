use super::*;
use gapless_dtype::{Datatype, Primitive};
use std::sync::Barrier;
use std::sync::atomic::{AtomicU64, Ordering};

fn layout() -> Layout {
    Datatype::vector(3, 1, 2, &Primitive::Int.into()).unwrap().commit().unwrap()
}

fn put(cache: &Cache<u64>, layout: &Layout, plan: u64, bytes: u64) {
    match cache.get_or_begin(layout) {
        CacheLookup::Begin(building) => building.finish(Arc::new(plan), bytes),
        CacheLookup::Ready(plan) => panic!("there is {plan} already"),
    }
}

fn held(cache: &Cache<u64>, layout: &Layout) -> Option<u64> {
    cache.get(layout).map(|plan| *plan)
}

#[test]
fn the_least_recently_used_goes_first() {
    let cache = Cache::new(100);
    let layouts: Vec<Layout> = (0..5).map(|_| layout()).collect();
    for (plan, layout) in (0..4).zip(&layouts) {
        put(&cache, layout, plan, 25);
    }
    assert_eq!(held(&cache, &layouts[0]), Some(0));
    assert_eq!(held(&cache, &layouts[2]), Some(2));
    put(&cache, &layouts[4], 4, 30);
    let left: Vec<_> = layouts.iter().map(|layout| held(&cache, layout)).collect();
    assert_eq!(left, [Some(0), None, Some(2), None, Some(4)]);
    let statistics = cache.statistics();
    assert_eq!((statistics.entries, statistics.bytes), (3, 80));
    assert_eq!((statistics.hits, statistics.misses, statistics.evictions), (5, 5, 2));
}

#[test]
fn equal_layouts_are_told_apart_and_clones_are_not() {
    let cache = Cache::new(100);
    let (a, b) = (layout(), layout());
    put(&cache, &a, 1, 1);
    assert_eq!(a, b);
    assert_eq!((held(&cache, &a.clone()), held(&cache, &b)), (Some(1), None));
}

#[test]
fn plans_of_dead_layouts_go_before_older_ones() {
    let cache = Cache::new(100);
    let (old, new) = (layout(), layout());
    put(&cache, &old, 1, 40);
    {
        let short_lived = layout();
        put(&cache, &short_lived, 2, 40);
    }
    put(&cache, &new, 3, 40);
    assert_eq!((held(&cache, &old), held(&cache, &new)), (Some(1), Some(3)));
    assert_eq!(cache.statistics().entries, 2);
    // Its identity may be another's now; the plan is not.
    for _ in 0..100 {
        assert_eq!(held(&cache, &layout()), None);
    }
}

#[test]
fn what_is_thrown_out_lives_while_it_is_used() {
    let cache = Cache::new(10);
    let (a, b) = (layout(), layout());
    put(&cache, &a, 7, 10);
    let in_use = cache.get(&a).unwrap();
    let watch = Arc::downgrade(&in_use);
    put(&cache, &b, 8, 10);
    assert_eq!((held(&cache, &a), *in_use), (None, 7));
    drop(in_use);
    assert!(watch.upgrade().is_none());
    cache.forget(&b);
    assert_eq!(cache.statistics().bytes, 0);
    assert_eq!((held(&cache, &b), cache.statistics().entries), (None, 0));
}

#[test]
fn too_large_a_plan_is_not_kept_and_throws_nothing_out() {
    let cache = Cache::new(10);
    let (small, large) = (layout(), layout());
    put(&cache, &small, 1, 10);
    assert!(!cache.keeps(11));
    put(&cache, &large, 2, 11);
    put(&cache, &large, 3, u64::MAX);
    assert_eq!((held(&cache, &small), held(&cache, &large)), (Some(1), None));
    assert_eq!(cache.statistics().evictions, 0);
}

#[test]
fn there_are_never_more_plans_than_can_be_searched() {
    let cache = Cache::new(u64::MAX);
    let layouts: Vec<Layout> = (0..ENTRIES_MAX + 10).map(|_| layout()).collect();
    for (plan, layout) in (0..).zip(&layouts) {
        put(&cache, layout, plan, 1);
    }
    let statistics = cache.statistics();
    assert_eq!((statistics.entries, statistics.evictions), (ENTRIES_MAX, 10));
    assert_eq!(held(&cache, &layouts[9]), None);
    assert_eq!(held(&cache, &layouts[10]), Some(10));
}

#[test]
fn threads_that_want_the_same_plan_build_it_once() {
    // One that is kept, and one that is too large for it.
    for bytes in [5, 50] {
        let cache = Cache::new(10);
        let layout = layout();
        let built = AtomicU64::new(0);
        let (all, waiting) = (Barrier::new(8), AtomicU64::new(0));
        thread::scope(|scope| {
            for _ in 0..8 {
                scope.spawn(|| {
                    all.wait();
                    waiting.fetch_add(1, Ordering::SeqCst);
                    match cache.get_or_begin(&layout) {
                        CacheLookup::Ready(plan) => assert_eq!(*plan, 3),
                        CacheLookup::Begin(building) => {
                            // All others have come, or will within what the scheduler allows; those
                            // that come later find the plan only if it is kept.
                            while waiting.load(Ordering::SeqCst) < 8 {
                                thread::yield_now();
                            }
                            built.fetch_add(1, Ordering::SeqCst);
                            building.finish(Arc::new(3), bytes);
                        }
                    }
                });
            }
        });
        let statistics = cache.statistics();
        assert_eq!(statistics.misses, built.load(Ordering::SeqCst));
        assert_eq!(statistics.hits + statistics.misses, 8);
        if bytes <= 10 {
            assert_eq!(statistics.misses, 1);
        }
    }
}

#[test]
fn another_builds_what_one_gave_up() {
    let cache: Cache<u64> = Cache::new(10);
    let layout = layout();
    let CacheLookup::Begin(first) = cache.get_or_begin(&layout) else { panic!("nothing is there") };
    thread::scope(|scope| {
        let second = scope.spawn(|| match cache.get_or_begin(&layout) {
            CacheLookup::Ready(_) => panic!("nobody built it"),
            CacheLookup::Begin(building) => building.finish(Arc::new(9), 1),
        });
        drop(first);
        second.join().unwrap();
    });
    assert_eq!(held(&cache, &layout), Some(9));
}

#[test]
fn builders_never_wait_for_each_other() {
    let cache: Cache<u64> = Cache::new(10);
    let (a, b) = (layout(), layout());
    let met = Barrier::new(2);
    let both = |first: &Layout, second: &Layout, plan: u64| {
        let CacheLookup::Begin(one) = cache.get_or_begin(first) else { panic!("nobody built it") };
        met.wait();
        let CacheLookup::Begin(two) = cache.get_or_begin(second) else { panic!("it is not built") };
        // The same thread may also ask twice for the same.
        let CacheLookup::Begin(three) = cache.get_or_begin(first) else {
            panic!("it is not built")
        };
        met.wait();
        drop(three);
        two.finish(Arc::new(plan + 1), 1);
        one.finish(Arc::new(plan), 1);
    };
    thread::scope(|scope| {
        scope.spawn(|| both(&a, &b, 10));
        scope.spawn(|| both(&b, &a, 20));
    });
    // Whichever came last.
    assert!(matches!(held(&cache, &a), Some(10 | 21)));
    assert!(matches!(held(&cache, &b), Some(20 | 11)));
    let CacheLookup::Ready(_) = cache.get_or_begin(&a) else { panic!("nothing is being built") };
    let statistics = cache.statistics();
    assert_eq!((statistics.entries, statistics.misses), (2, 6));
}

#[test]
fn many_threads_leave_the_books_in_order() {
    let cache = Cache::new(40);
    let layouts: Vec<Layout> = (0..12).map(|_| layout()).collect();
    thread::scope(|scope| {
        for thread in 0..4u64 {
            let (cache, layouts) = (&cache, &layouts);
            scope.spawn(move || {
                let mut rng = gapless_dtype::testkit::Rng::new(thread);
                for _ in 0..2000 {
                    let at = rng.index(layouts.len());
                    let number = at as u64;
                    match cache.get_or_begin(&layouts[at]) {
                        CacheLookup::Ready(plan) => assert_eq!(*plan, number),
                        CacheLookup::Begin(building) if rng.chance(10) => drop(building),
                        CacheLookup::Begin(building) => building.finish(Arc::new(number), number),
                    }
                    if rng.chance(3) {
                        cache.forget(&layouts[at]);
                    }
                }
            });
        }
    });
    let statistics = cache.statistics();
    assert_eq!(statistics.hits + statistics.misses, 8000);
    let left: Vec<u64> = layouts.iter().filter_map(|layout| held(&cache, layout)).collect();
    assert_eq!((left.len(), left.iter().sum::<u64>()), (statistics.entries, statistics.bytes));
    assert!(statistics.bytes <= 40);
    assert!(cache.books().building.is_empty());
}
