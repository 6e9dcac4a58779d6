use super::*;

#[test]
fn an_event_is_about_what_was_watched() {
    let told = |what: Watched| match Watched::of(what.data().u64()) {
        Watched::Listener => (0, 0),
        Watched::Incoming(number) => (1, number),
        Watched::Outgoing(number) => (2, number),
        Watched::Caller(number) => (3, number),
    };
    assert_eq!(told(Watched::Listener), (0, 0));
    for number in [0, 1, 77, u32::MAX] {
        assert_eq!(told(Watched::Incoming(number)), (1, number));
        assert_eq!(told(Watched::Outgoing(number)), (2, number));
        assert_eq!(told(Watched::Caller(number)), (3, number));
    }
}
