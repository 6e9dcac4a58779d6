/* Tasks of other processes on this GPU, without a launch (docs/xtq.md): what lies in memory that the worker kernel
 * shares with the host and with initiators. xtq/src/device/layout.rs has the same numbers, and its test reads these.
 *
 * A ring takes the packets of one initiator. A slot is 16 units of 16 bytes, each of which is written and read at once:
 * units 0 to 3 are the packet (xtq/src/packet.rs), those behind it have
 *
 *    0            2
 *   | sequence:2 | 14 bytes of the body |                       if all of the body fits, or
 *   | sequence:2 | 0:6 | bytes from the arena's start:8 |       once, if it does not.
 *
 * The body is the arguments, then the payload; in the arena, which takes multiples of 16, that begins at one. Units that
 * a packet does not need have another sequence, or 0. Put number p (from 0) goes to slot p % SLOTS, with the sequence 1 + p % SEQUENCES. When its task has ended, or was refused,
 * word p % SLOTS of the status is sequence:16 | code:8 | 0:8 | value:32; then the slot is free.
 *
 * A ring's head has two words that the initiator sees: whether the worker runs (written by the worker), and whether it
 * is wanted (written by the initiator, or by a worker that leaves packets behind); of a GPU's ring, one more tells the GPU to
 * wait no longer (written by its host). The control block is the target's
 * alone; its count of changes is odd while tables or buffers are written. All offsets are in bytes.
 */
#ifndef GAPLESS_WORKER_H
#define GAPLESS_WORKER_H

#define SLOTS 256
#define SLOT_BYTES 256
#define UNIT_BYTES 16
#define PACKET_UNITS 4
#define UNIT_BODY 14
#define INLINE_BYTES 168
#define SEQUENCES 65535
#define RINGS_MAX 32
#define BUFFERS_MAX 64
#define SIGNALS_MAX 64
#define OUTS_MAX 8
#define LAYOUTS_MAX 32
#define ENTRIES 64

/* A ring's head. */
#define RING_STATE 0
#define RING_WANTED 64
#define RING_ABORT 128
#define RING_HEAD_BYTES 256

/* The state word, of the control block and of rings. */
#define GONE 0
#define STARTING 1
#define RUNNING 2
#define LEAVING 3

/* The control block. */
#define CONTROL_STATE 0
#define CONTROL_WHY 8
#define CONTROL_CHANGED 64
#define CONTROL_ORDERS 72
#define CONTROL_SEEN 128
#define CONTROL_TASKS 136
#define CONTROL_REFUSALS 144
#define CONTROL_IDLE 192
#define CONTROL_LIFE 200
#define CONTROL_RINGS 208
#define CONTROL_BUFFERS 216
#define CONTROL_OUTS 224
#define CONTROL_FIRST 232
#define CONTROL_COUNTED 256
#define CONTROL_RING_LIST 768
#define CONTROL_FIRST_SLOT 2816
#define CONTROL_BUFFER_LIST 3072
#define CONTROL_REFUSED 4096
#define CONTROL_OUT_LIST 5120
#define CONTROL_LAYOUT_LIST 6144
#define CONTROL_KERNELS 8192
#define CONTROL_QUEUES 12288
#define CONTROL_BYTES 16384
#define REFUSED_MAX 64

/* A life is given the first words of its control block as they are when it is started, because reading them over the bus
 * takes long. Behind these are rings from the fifth on, and lists: a launch takes the longer the more it is given. */
#define FIRST_WORDS 128
/* And with them the slot of the next packet of one of the first rings, whose initiator waits for this life: CONTROL_FIRST
 * is that ring's number, from 1, or 0; CONTROL_FIRST_SLOT is what lies in the slot. */
#define FIRST_RINGS 4

/* An element of the ring list, and of the list of rings to put into: words of 8 bytes. */
#define RING_WORDS 8
#define RING_HEAD_AT 0
#define RING_SLOTS_AT 1
#define RING_STATUS_AT 2
#define RING_ARENA_AT 3
#define RING_ARENA_BYTES 4
#define RING_POSITION 5
/* Of the ring list: not 0 if the slots lie in the worker's own memory. */
#define RING_NEAR 6

/* A row of a table: its sequence, odd while it is written, and seven words (xtq/src/tables.rs). */
#define ROW_WORDS 8
#define ROW_OBJECT 1
#define ROW_BUFFER 2
#define ROW_BUFFER_BYTES 3
#define ROW_SIGNAL 4
#define ROW_LIMITS 5
#define ROW_GRID_XY 6
#define ROW_GRID_Z_ITEMS 7
#define QUEUE_BASE 1
#define QUEUE_CAPACITY 2
#define QUEUE_WIDTH 3

/* Orders of the host. */
#define ORDER_ABORT 1
#define ORDER_LEAVE 2

/* Why the worker has left. */
#define WHY_IDLE 1
#define WHY_TOLD 2
#define WHY_ABORTED 3
#define WHY_OLD 4

/* Codes of a status. Below 64 they are those of a refusal (xtq/src/error.rs). */
#define REFUSED_NOT_REGISTERED 1
#define REFUSED_NO_QUEUE 2
#define REFUSED_PAYLOAD 3
#define REFUSED_ARGUMENTS 4
#define REFUSED_GROUP 5
#define REFUSED_NO_BUFFER 7
#define REFUSED_SMALL_BUFFER 8
#define REFUSED_GRID 11
#define STATUS_ENDED 64
#define STATUS_FAILED 65
#define STATUS_MALFORMED 66

/* Why a task has failed. */
#define FAILED_OUTSIDE 1
#define FAILED_UNKNOWN 2
#define FAILED_STOPPED 3
#define FAILED_FULL 4
/* With this bit: what a function of a user's says. */
#define FAILED_USER 0x80000000u

/* What runs: objects of the Kernel Table. */
#define DO_ACCUMULATE 1
#define DO_COPY 2
#define DO_REDUCE 3
#define DO_NUMBER 4
#define DO_PAUSE 5
#define DO_FORWARD 6
#define DO_UNPACK 7
#define DO_PACK 8
#define DO_COMBINE 16
/* From here on: functions of users. */
#define DO_USER 256

/* What is accumulated: operation | element << 8. */
#define ACC_SUM 0
#define ACC_PROD 1
#define ACC_MIN 2
#define ACC_MAX 3
#define ACC_I32 0
#define ACC_U32 1
#define ACC_I64 2
#define ACC_U64 3
#define ACC_F32 4
#define ACC_F64 5

/* Work-items of DO_COMBINE, at most. */
#define COMBINE_ITEMS_MAX 4096

/* A block of the worker. */
#define WORKER_THREADS 512
#define WORKER_ITEMS_MAX 512
#define WORKER_LOCAL_MAX 0

#endif
