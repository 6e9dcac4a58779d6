//! What is wrong with each broken transport, the test of the suite that must catch it, and part of what
//! that test says: caught for another reason does not count.

macro_rules! flaws {
    ($($(#[doc = $doc:literal])* $name:ident: $test:ident, $says:literal;)*) => {
        /// One broken promise, or none.
        #[derive(Clone, Copy, Debug, PartialEq, Eq)]
        pub(crate) enum Flaw {
            /// The control: keeps every rule.
            Healthy,
            /// The control for [`LeavesWithoutFlushing`](Flaw::LeavesWithoutFlushing): sends with the next poll,
            /// and passes on what is left when it is dropped.
            Batches,
            $($(#[doc = $doc])* $name,)*
        }

        /// All flaws.
        pub(crate) const FLAWS: &[(Flaw, &str, &str)] =
            &[$((Flaw::$name, stringify!($test), $says),)*];
    };
}

flaws! {
    // 1. Messages
    /// Every 97th message is lost.
    LosesMessages: order_and_exactly_once, "order";
    /// Every 97th message comes twice.
    RepeatsMessages: order_and_exactly_once, "came twice";
    /// Now and then a message overtakes the one before.
    Reorders: order_and_exactly_once, "order";
    /// A byte of every 20th long message is wrong.
    Damages: order_and_exactly_once, "is damaged";
    /// Every 50th message lacks its last byte.
    Shortens: order_and_exactly_once, "is damaged";
    /// Messages of 128 bytes and a few more come without these.
    Rounds: every_size, "length of message 129";
    /// Tags have seven bits.
    CutsTags: order_and_exactly_once, "AmTag(128)";
    /// Somebody else is said to have sent a message.
    BlamesOthers: order_and_exactly_once, "who sent it";
    /// What is sent between two polls leaves in reverse.
    SendsBackwards: send_fixes_the_order, "AmTag(0)";
    /// Of a message cut short after it was reserved, all is sent.
    IgnoresTruncation: truncation, "bytes";

    // 2. Slots
    /// Some slots never come back.
    LeaksSlots: unsent_slots, "a slot takes too long";
    /// A message of a few bytes more than the limit finds room.
    ReservesTooMuch: every_size, "too long: Slot";
    /// A slot is longer than was asked for.
    ReservesLonger: every_size, "right: 0";
    /// No room is an error.
    FullIsAnError: back_pressure, "no room";
    /// Once there was no room, there never is.
    StaysFull: back_pressure, "room for a message takes too long";
    /// There is always room to send; what there is none for at the receiver is lost.
    NeverFull: back_pressure, "drowned";
    /// A peer that nobody has connected to is merely slow.
    NobodyIsFull: bad_addresses, "Full";
    /// Every 50th token never comes back.
    LosesTokens: tokens_once, "all tokens takes too long";
    /// Every 50th token comes back twice.
    RepeatsTokens: tokens_once, "a token comes once";
    /// The end of a message is told although nobody asked.
    TellsUnasked: tokens_once, "a token that was given";

    // 3. Arrivals
    /// A fragment's memory is used anew while it is held.
    ReusesFragments: parked_fragments, "first wrong byte";
    /// The room of every tenth fragment never comes back.
    KeepsCredits: parked_fragments, "parked messages takes too long";
    /// A fragment of a peer that is lost is overwritten.
    OverwritesParked: parked_across_a_death, "changed while it was held";

    // 4. Polling
    /// A poll gives what there is, whatever room there is.
    IgnoresRoom: no_more_than_there_is_room_for, "room for 1";
    /// What a poll has no room for is lost.
    DropsWhatDoesNotFit: no_more_than_there_is_room_for, "takes too long";
    /// A poll says that there was one event more.
    Miscounts: order_and_exactly_once, "how many events";
    /// A poll waits for an event.
    PollWaits: poll_never_blocks, "polls of an end";
    /// What comes does not ring.
    DeafArm: arming_wakes, "to become readable takes too long";
    /// The descriptor that `arm` gives is closed.
    ClosedArm: arming_wakes, "closed descriptor";

    // Short cuts
    /// What leaves from where it lies lacks its last byte.
    ZeroCopyIsCut: zero_copy_messages, "sent without a copy, 0 put at targets";
    /// What leaves from where it lies has left although there was no room.
    ZeroCopyLies: zero_copy_messages, "all messages takes too long";
    /// A message by value is said to have left although there was no room.
    ShortsLie: short_messages, "all messages takes too long";
    /// A message by value leaves before those that wait for a poll.
    ShortsOvertake: short_messages, "all others";
    /// A message by value has whole words.
    ShortsAreWords: short_messages, "all others";
    /// Messages are offered although one before them has become an event.
    OffersBehindEvents: short_messages, "behind an event of its peer";
    /// What was taken within the poll comes as an event, too.
    TakenComesToo: short_messages, "all others";
    /// What was refused comes as two events.
    RefusedComesTwice: short_messages, "all others";
    /// What was refused does not come.
    RefusedIsLost: short_messages, "all messages takes too long";
    /// What was refused when there was no room for its event does not come.
    RefusedNeedsRoom: short_messages, "all messages takes too long";
    /// A poll for one peer gives its next message, and it comes again.
    NextComesTwice: short_messages, "all others";
    /// A poll for one peer counts its next message whether or not it was taken.
    NextLies: short_messages, "a poll says how many there were";
    /// A poll for one peer is a poll of all.
    IgnoresOnly: one_peer_alone, "only messages are due: Sent";
    /// A poll for one peer gives the next message, whoever sent it.
    NextIsAnyones: one_peer_alone, "there is no such peer";
    /// A poll for one peer tells that it is lost.
    NextIsTheLoss: one_peer_alone, "only messages are due: Lost";
    /// There is never anything to poll for.
    AlwaysQuiet: quiet_until_something_comes, "end of the quiet";

    // 5. Meeting
    /// Asking again with the same address gives another name.
    RenamesPeers: connecting_twice, "PeerId(1)";
    /// Any bytes are an address.
    AcceptsAddresses: bad_addresses, "a damaged address";
    /// All ends have one address.
    SharesAnAddress: limits_make_sense, "two addresses";
    /// The longest message is shorter than an eager one.
    ContradictsItself: limits_make_sense, "max_fragment_bytes";
    /// What came before `connect` is lost.
    LosesEarly: early_arrivals, "AmTag(0)";
    /// What came before `connect` is delivered then.
    DeliversEarly: early_arrivals, "delivered before";
    /// A peer that has sent is said to be one that nobody needed.
    NeverMeets: introductions, "room to send";
    /// What is sent to oneself never comes.
    ForgetsItself: oneself, "messages to oneself";
    /// From a thread other than the one it was made in, nothing is sent.
    LivesInOneThread: two_threads, "thread panicked";
    /// A sender that does not poll never gets room again, nor after it polls.
    ForgivesNothing: sender_that_never_polls, "room for a message takes too long";

    // 6. Dying
    /// A death is not told.
    HidesDeath: peer_dropped, "the loss of the peer takes too long";
    /// A death is told twice.
    RepeatsDeath: peer_dropped, "nothing more: Lost";
    /// A death is told before what came earlier.
    DeathFirst: last_words, "nothing more: Arrived";
    /// Messages that find no room in the list that a death is told in are lost.
    DeathDropsTheRest: last_words, "messages came of a peer that waited";
    /// A living peer is said to be lost.
    InventsDeath: order_and_exactly_once, "the peer is gone";
    /// A peer that has ended is said to have broken the rules.
    GoneIsCorrupt: peer_dropped, "reported as Corrupt";
    /// What is pending at a death never ends.
    ForgetsPending: peer_dropped, "never came back";
    /// What is pending at a death ends behind the loss.
    EndsPendingLate: peer_dropped, "never came back";
    /// There is no room for messages to the dead, and never an error.
    DeadIsFull: peer_dropped, "Full";
    /// What is sent to the dead has no end.
    DeadSwallows: peer_dropped, "the end of a message takes too long";
    /// The farewell is a message, and dropped if there is no room.
    FarewellNeedsRoom: death_in_a_crowd, "the loss of the peer takes too long";
    /// A death is told when no fragment is held any more.
    DeathWaitsForFragments: parked_across_a_death, "the loss of the peer takes too long";
    /// A death does not ring.
    DeathIsSilent: death_wakes, "to become readable takes too long";

    // 7. Leaving
    /// What waits for a poll is lost when the end is dropped.
    LeavesWithoutFlushing: last_words, "0 of 1 messages came";

    // 8. Trust
    /// A peer that breaks the rules is said to have ended.
    CorruptIsGone: garbage_is_survived, "reported as PeerGone";
    /// What breaks the rules is delivered.
    DeliversGarbage: garbage_is_survived, "never sent";
    /// What breaks the rules is a panic.
    PanicsAtGarbage: garbage_is_survived, "a message of";
    /// One-sided operations may touch what is outside.
    ReachesOutside: rdma_refuses_what_is_wrong, "OutOfRange";
    /// Memory that peers may read can be written.
    WritesReadOnly: rdma_refuses_what_is_wrong, "Ok(Ok(()))";

    // Abilities
    /// A read leaves out the last byte.
    GetsTooLittle: rdma_at_every_alignment, "the bytes are wrong";
    /// A write puts a byte too many.
    PutsTooMuch: rdma_at_every_alignment, "a byte beside them changed";
    /// Pieces are moved in another order.
    SwapsPieces: rdma_in_many_pieces, "is wrong";
    /// A one-sided operation has no end.
    NeverCompletes: rdma_at_every_alignment, "an event takes too long";
    /// A sum is one too many.
    AddsOneMore: numbers_change, "of 0x5 at 0";
    /// What a process adds to a number of its own is lost.
    LosesOwnSums: numbers_change_from_both_ends, "a second time";
    /// Memory that peers may write can be changed atomically.
    ChangesAnything: atomics_refuse_what_is_wrong, "NotAtomic";
    /// Allocated memory is not zeroed.
    AllocatesDirt: mapped_memory, "zeroed";
    /// There is a key for more than the allocation.
    KeysForAnything: mapped_keys_are_checked, "heap memory";
    /// What was revoked can be mapped.
    ForgetsRevocations: revoked_memory, "mapped over there";
    /// Memory that a peer has mapped is said to be private.
    StaysShared: memory_made_private, "wrote later shows";

    // 9. Devices
    /// A device is held for ever.
    KeepsDevices: attaching_a_device, "a detached device is let go";
    /// Devices are refused.
    RefusesDevices: devices_reach_slots, "attach";
    /// Device memory that was invalidated is said to be free while it is mapped.
    InvalidatesTooSoon: mapped_device_memory, "mapped over there";
    /// Memory is mapped for a device that is not attached.
    MapsForAnybody: device_keys_are_checked, "not attached";
    /// What was mapped is never let go of.
    KeepsMappings: device_memory_freed_and_reused, "let go of memory";
    /// After some buffers there are no more keys.
    RunsOutOfKeys: device_buffers_beyond_the_cache, "always room for one more";

    // 10. Retention
    /// That the other end has had all is never known.
    NeverKnowsReceipt: retained_until_received, "receipt of all";
    /// That the other end has had all is known once that has polled for long.
    TellsReceiptLate: receipt_lags_little, "but what may lag behind";
    /// A message too few is given back.
    ForgetsOne: retained_across_a_cut, "are nowhere";
    /// What was given back is given back again.
    GivesBackTwice: retained_across_a_cut, "once";
    /// What is given back has tokens that have come back.
    GivesBackTold: retained_across_a_cut, "message";
    /// What is given back has failed, too.
    FailsRetained: retained_across_a_cut, "does not fail";
}
