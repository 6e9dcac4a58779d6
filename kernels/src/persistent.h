/* Kernels that stay on a GPU, and run what their own host writes into a ring (cuda/lives.h). What lies where, in
 * page-locked memory that both see; persistent.rs has the same numbers, and its test reads these.
 *
 * A command is UNITS units of 16 bytes. The host stores the half with the number last, with release, into one line; the kernel
 * loads a unit by one access, which is taken to be one over the bus, too:
 *
 *    0            2
 *   | sequence:2 | 14 bytes of the command |
 *
 * The command is words of 8 bytes, behind a head of 16 bytes: what is to be done, how many segments there are, and for each
 * segment where it begins in the arguments that the kernel keeps, and how long it is, in words. Behind it come the segments.
 *
 * Command n (from 0) goes to slot n % SLOTS, with the sequence 1 + n % SEQUENCES. All offsets are in bytes.
 */
#ifndef GAPLESS_PERSISTENT_H
#define GAPLESS_PERSISTENT_H

#define PERSISTENT_SLOTS 64
#define PERSISTENT_UNITS 32
#define PERSISTENT_UNIT_BYTES 16
#define PERSISTENT_UNIT_BODY 14
#define PERSISTENT_SEQUENCES 65535
#define PERSISTENT_HEAD_BYTES 16
#define PERSISTENT_SEGMENTS_MAX 7
#define PERSISTENT_THREADS 512
/* What is to be done: nothing, and the kernel leaves. */
#define PERSISTENT_LEAVE 255

/* What the kernel does. Written by the host when it starts a life, and by the kernel. `AWAY` is a life's last word:
 * what it does not find after that is the next one's. */
#define PERSISTENT_STATE 0
#define PERSISTENT_AWAY 0
#define PERSISTENT_STARTING 1
#define PERSISTENT_RUNNING 2
/* How many commands have ended. */
#define PERSISTENT_ENDED 128
#define PERSISTENT_RING 512

#endif
