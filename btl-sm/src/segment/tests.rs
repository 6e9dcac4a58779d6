//! Mappings, their files, and pages that are taken back.

use super::*;
use gapless_mem::fake::FakeDevice;
use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};

#[test]
fn both_mappings_show_the_same_bytes() {
    let (ours, file) = Segment::create(8192, true).unwrap();
    let theirs = Segment::adopt(&file, 8192).unwrap();
    ours.words(4096, 2)[1].store(7, Ordering::Relaxed);
    assert_eq!(theirs.words(4104, 1)[0].load(Ordering::Relaxed), 7);
}

#[test]
fn wrong_files_are_refused() {
    let (_segment, file) = Segment::create(8192, false).unwrap();
    assert!(matches!(Segment::adopt(&file, 4096), Err(LinkError::Corrupt { .. })));
    let open = rustix::fs::memfd_create("test", MemfdFlags::ALLOW_SEALING).unwrap();
    rustix::fs::ftruncate(&open, 4096).unwrap();
    let error = Segment::adopt(&open, 4096).unwrap_err();
    assert!(error.to_string().contains("seals"), "{error}");
    let other = OwnedFd::from(std::fs::File::open("/proc/self/exe").unwrap());
    assert!(Segment::adopt(&other, 4096).unwrap_err().to_string().contains("sealed"));
}

#[test]
fn devices_that_were_not_made_to_forget_a_segment_are_when_it_ends() {
    let (segment, file) = Segment::create(8192, false).unwrap();
    let devices: Vec<_> = (0..3).map(|number| Arc::new(FakeDevice::new(number))).collect();
    for device in &devices {
        segment.register(&(Arc::clone(device) as Arc<dyn Device>)).unwrap();
    }
    let whole = segment.whole();
    // The one in the middle refuses: it was made to forget the memory by somebody else.
    // SAFETY: nothing works on it.
    unsafe { devices[1].unregister(whole) }.unwrap();
    assert!(segment.make_private(&file, 0, 8192).is_err());
    assert_eq!(segment.region(0, 1).space(), Space::Pinned, "a device knows it");
    // SAFETY: the segment is unregistered before it is unmapped.
    unsafe { devices[1].register(whole) }.unwrap();
    drop(segment);
    for device in devices {
        assert_eq!(device.registered(), [], "{}", device.properties().name);
    }
}

/// In a process of its own, whose memory is limited: the system lets the first run of pages be made private, and
/// not the second.
#[test]
fn pages_that_became_private_before_an_error_stay_so() {
    const ROLE: &str = "GAPLESS_SEGMENT_CHILD";
    let name = "segment::tests::pages_that_became_private_before_an_error_stay_so";
    if std::env::var_os(ROLE).is_none() {
        let program = std::env::current_exe().unwrap();
        let mut child = std::process::Command::new(program);
        child.args([name, "--exact", "--nocapture"]).env(ROLE, "1");
        let output = child.output().unwrap();
        let said = String::from_utf8_lossy(&output.stdout);
        assert!(output.status.success() && said.contains("1 passed"), "{output:?}");
        return;
    }
    let page = rustix::param::page_size();
    let (first, second) = (2048, 1);
    let len = (first + 1 + second) * page;
    let (ours, file) = Segment::create(len, false).unwrap();
    let theirs = Segment::adopt(&file, len).unwrap();
    (0..len / page).for_each(|number| ours.words(number * page, 1)[0].store(7, Ordering::Relaxed));
    // Between the runs.
    ours.make_private(&file, first * page, 1).unwrap();
    let status = std::fs::read_to_string("/proc/self/status").unwrap();
    let data = status.lines().find_map(|line| line.strip_prefix("VmData:")).unwrap();
    let kilobytes: u64 = data.trim().trim_end_matches(" kB").parse().unwrap();
    let before = getrlimit(Resource::Data);
    let little = Some((kilobytes + 1024) << 10);
    setrlimit(Resource::Data, Rlimit { current: little, ..before }).unwrap();
    let result = ours.make_private(&file, 0, len);
    setrlimit(Resource::Data, before).unwrap();
    if result.is_ok() {
        return gapless_btl_testkit::conformance::skip(
            "a refused mapping",
            "the system has no such limit",
        );
    }
    ours.words(0, 1)[0].store(8, Ordering::Relaxed);
    ours.make_private(&file, 0, len).unwrap();
    (0..len / page)
        .for_each(|number| theirs.words(number * page, 1)[0].store(9, Ordering::Relaxed));
    assert_eq!(ours.words(0, 1)[0].load(Ordering::Relaxed), 8, "what was written after the error");
    for number in 1..len / page {
        assert_eq!(ours.words(number * page, 1)[0].load(Ordering::Relaxed), 7, "page {number}");
    }
}

#[test]
fn huge_pages_of_a_peer_are_refused() {
    let flags = MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING | MemfdFlags::HUGETLB;
    let file = match rustix::fs::memfd_create("huge", flags) {
        Ok(file) => file,
        Err(error) => {
            return gapless_btl_testkit::conformance::skip("huge pages", &error.to_string());
        }
    };
    let len = 1 << 30;
    rustix::fs::ftruncate(&file, len as u64).unwrap();
    rustix::fs::fcntl_add_seals(&file, SEALS).unwrap();
    assert!(Segment::adopt(&file, len).unwrap_err().to_string().contains("file system"));
}

#[test]
#[should_panic(expected = "leave a segment")]
fn views_stay_inside() {
    let _ = Segment::private(4096).unwrap().words(4096, 1);
}
