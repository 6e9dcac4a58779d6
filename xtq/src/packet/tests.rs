use super::*;

fn kernel() -> Command {
    Command {
        index: 42,
        queue: 63,
        flags: Flags::ACKNOWLEDGE,
        object: 0,
        signal: 0x0123_4567_89AB_CDEF,
        payload_bytes: 0x8000_0001,
        work: TaskWork::Kernel(Launch {
            arguments: 0,
            argument_bytes: 24,
            grid: [1 << 20, 6, 7],
            group: [256, 3, 1],
            local_bytes: 48 << 10,
        }),
    }
}

#[test]
fn bytes_are_where_the_picture_says() {
    let packet = Packet::new(&kernel()).unwrap().sealed(0x1234);
    let bytes = packet.as_bytes();
    for part in 0..4 {
        assert_eq!(bytes[16 * part..16 * part + 2], [0x34, 0x12]);
    }
    assert_eq!(bytes[2..8], [2, 1, 42, 63, 0, 0]);
    assert_eq!(bytes[24..28], (1u32 << 20).to_le_bytes());
    assert_eq!(bytes[28..32], 6u32.to_le_bytes());
    assert_eq!(bytes[34..40], [0xEF, 0xCD, 0xAB, 0x89, 0x67, 0x45]);
    assert_eq!(bytes[40..48], [7, 0, 0, 0, 24, 0, 0, 12]);
    assert_eq!(bytes[50..56], [0x23, 0x01, 1, 0, 0, 0x80]);
    assert_eq!(bytes[56..64], [0, 1, 3, 0, 1, 0, 0, 0]);
    assert_eq!(Packet::read(bytes).unwrap().sent(), Ok(kernel()));
    assert_eq!(Packet::read(&bytes[1..]), Err(PacketError::Length { bytes: 63 }));
}

#[test]
fn a_part_of_another_packet_is_noticed() {
    let whole = Packet::new(&kernel()).unwrap().sealed(7);
    let zeroed = Packet::read(&[0; PACKET_BYTES]).unwrap();
    assert_eq!(zeroed.command(), Err(PacketError::Torn { found: [0; 4] }));
    let before = Packet::new(&kernel()).unwrap().sealed(6);
    for part in 0..4 {
        let mut bytes: [u8; PACKET_BYTES] = whole.as_bytes().try_into().unwrap();
        bytes[16 * part..][..16].copy_from_slice(&before.as_bytes()[16 * part..][..16]);
        let torn = Packet::read(&bytes).unwrap();
        assert_eq!(torn.sequence(), None);
        assert!(matches!(torn.command(), Err(PacketError::Torn { .. })));
    }
}

/// Every bit of a packet matters, or is refused when it is set.
#[test]
fn no_bit_is_ignored() {
    let function =
        Command { work: TaskWork::Function { arguments: [1, 2, 3, u64::MAX] }, ..kernel() };
    for command in [kernel(), function] {
        let packet = Packet::new(&command).unwrap();
        for bit in 0..8 * PACKET_BYTES {
            let mut bytes: [u8; PACKET_BYTES] = packet.as_bytes().try_into().unwrap();
            bytes[bit / 8] ^= 1 << (bit % 8);
            assert_ne!(Packet::read(&bytes).unwrap().sent(), Ok(command), "bit {bit}");
        }
    }
}

#[test]
fn what_only_the_target_may_set_is_refused() {
    let sent = |change: &dyn Fn(&mut Command)| {
        let mut command = kernel();
        change(&mut command);
        let packet = Packet::new(&command).unwrap();
        assert_eq!(packet.command(), Ok(command), "the target may");
        packet.sent().unwrap_err()
    };
    assert_eq!(
        sent(&|command| command.object = 1 << 60),
        PacketError::NotMine { field: "object", value: 1 << 60 }
    );
    let flags = |command: &mut Command| command.flags |= Flags::REGISTERED_SIGNAL;
    assert_eq!(sent(&flags), PacketError::Flags { flags: 0x81 });
    let arguments = |command: &mut Command| {
        if let TaskWork::Kernel(launch) = &mut command.work {
            launch.arguments = 8;
        }
    };
    assert!(matches!(sent(&arguments), PacketError::NotMine { .. }));
}

#[test]
fn launches_that_cannot_be_are_refused() {
    let refused = |change: &dyn Fn(&mut Launch)| {
        let mut launch = Launch::linear(2, 64, 16);
        assert_eq!((launch.groups(), launch.group_items()), ([2, 1, 1], 64));
        change(&mut launch);
        Packet::new(&Command { work: TaskWork::Kernel(launch), ..kernel() }).unwrap_err()
    };
    assert!(matches!(refused(&|l| l.grid[0] = 65), PacketError::Grid { .. }));
    assert!(matches!(refused(&|l| l.grid[2] = 0), PacketError::Grid { .. }));
    assert!(matches!(refused(&|l| l.group[1] = 0), PacketError::Grid { .. }));
    assert_eq!(refused(&|l| l.argument_bytes = 8), PacketError::ArgumentBytes { bytes: 8 });
    assert_eq!(refused(&|l| l.argument_bytes = 4104), PacketError::ArgumentBytes { bytes: 4104 });
    assert_eq!(refused(&|l| l.argument_bytes = 20), PacketError::ArgumentBytes { bytes: 20 });
    assert_eq!(refused(&|l| l.local_bytes = 8), PacketError::LocalBytes { bytes: 8 });
    assert!(matches!(refused(&|l| l.local_bytes = 1 << 20), PacketError::LocalBytes { .. }));
    let far = Packet::new(&Command { index: 64, ..kernel() });
    assert_eq!(far.unwrap_err(), PacketError::Index { index: 64, queue: 63 });
}
