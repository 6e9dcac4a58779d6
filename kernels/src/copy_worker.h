/* A kernel that stays on a GPU and runs short copies that its own host writes into a ring (cuda/copy_worker.cu). What lies
 * where, in page-locked memory that both see; copy_worker.rs has the same numbers, and its test reads these.
 *
 * A command is UNITS units of 16 bytes. The host stores the half with the number last, with release, into one line; the kernel
 * loads a unit by one access, which is taken to be one over the bus, too:
 *
 *    0            2
 *   | sequence:2 | 14 bytes of the command |
 *
 * The command is words of 8 bytes, behind a head of 16 bytes: the logarithm of a word's bytes, how many segments there are,
 * and for each segment where it begins in TransferArgs and how long it is, in words of 8 bytes. Behind it come the addresses
 * of the source, the destination and both plans, then the segments.
 *
 * Command n (from 0) goes to slot n % SLOTS, with the sequence 1 + n % SEQUENCES. All offsets are in bytes.
 */
#ifndef GAPLESS_COPY_WORKER_H
#define GAPLESS_COPY_WORKER_H

#define COPY_SLOTS 64
#define COPY_UNITS 32
#define COPY_UNIT_BYTES 16
#define COPY_UNIT_BODY 14
#define COPY_SEQUENCES 65535
#define COPY_HEAD_BYTES 16
#define COPY_SEGMENTS_MAX 6
#define COPY_POINTERS 4
#define COPY_THREADS 512
/* Instead of a logarithm: nothing is moved, and the worker leaves. */
#define COPY_LEAVE 255

/* What the worker does. Written by the host when it starts a life, and by the worker. `AWAY` is a life's last word: what it
 * does not find after that is the next one's. */
#define COPY_STATE 0
#define COPY_AWAY 0
#define COPY_STARTING 1
#define COPY_RUNNING 2
/* How many commands have ended. */
#define COPY_ENDED 128
#define COPY_RING 512

#endif
