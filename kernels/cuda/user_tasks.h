/* Functions of users, as the worker runs them; and what they call (gapless_tasks.h). In worker.cu. */
#ifndef GAPLESS_USER_TASKS_H
#define GAPLESS_USER_TASKS_H

/* Of groups that meet; 0 is the block's own. */
#define MEETING 1

/* What is the worker's in a task of a user's. */
typedef struct {
    Watch *watch;
    Out *outs;
    u64 put;
} Users;

/* Calls the function of this number. The host writes it, for those that are linked. */
extern "C" __device__ u32 gapless_call(u64 number, const gapless_task *task, u64 item);

extern "C" __device__ u32 gapless_meet(const gapless_task *task) {
    u32 items = task->group_items;
    if (items <= 32) {
        __syncwarp(0xffffffffu >> (32 - items));
        return 1;
    }
    if (items % 32 != 0) return 0;
    asm volatile("barrier.sync %0, %1;" ::"n"(MEETING), "r"(items) : "memory");
    return 1;
}
extern "C" __device__ u32 gapless_is_stopped(const gapless_task *task) {
    return is_stopped(((const Users *)task->worker)->watch);
}
extern "C" __device__ gapless_lane *gapless_out(const gapless_task *task, u32 number) {
    const Users *users = (const Users *)task->worker;
    return number < users->put ? users->outs + number : (gapless_lane *)0;
}

/* Groups `first` to `last` of a task, one after another. Whether it was cut short; `said` is why, if the function says so. */
NOINLINE bool run_users(Shared &s, u32 team, u64 first, u64 last) {
    __shared__ Users users;
    const Task &t = s.task[team];
    const u64 *packet = (const u64 *)s.slot[team];
    u64 group_word = packet[7];
    u32 group = s.parts.group;
    if (THREAD == 0) {
        users.watch = &s.watch;
        users.outs = s.reachable;
        users.put = s.put;
        gapless_task &u = s.user;
        u.buffer = (void *)t.buffer;
        u.buffer_bytes = t.buffer_bytes;
        u.payload = (const void *)t.payload;
        u.payload_bytes = t.payload_bytes;
        u.arguments = t.arguments;
        u.items = t.items;
        u.argument_words = t.argument_bytes / 8;
        u.group_items = group;
        u.grid[0] = part(packet[3], 0, 32);
        u.grid[1] = part(packet[3], 32, 32);
        u.grid[2] = part(packet[5], 0, 32);
        u.group[0] = part(group_word, 0, 16);
        u.group[1] = part(group_word, 16, 16);
        u.group[2] = part(group_word, 32, 16);
        u.worker = &users;
    }
    BARRIER();
    for (u64 g = first; g < last; g++) {
        u32 said = THREAD < group ? gapless_call(t.object, &s.user, g * group + THREAD) : 0;
        if (said != 0) atomicCAS(&s.said, 0, said);
        /* A group's shared memory is the next one's, too. */
        bool stopped = THREAD == 0 && (g - first) % GROUPS == GROUPS - 1 && g != last - 1 && is_stopped(&s.watch);
        if (__syncthreads_or(stopped || said != 0)) return true;
    }
    return false;
}

#endif
