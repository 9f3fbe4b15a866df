/* SPDX-License-Identifier: GPL-2.0 OR MIT */
/*
 * debug.h - included before the driver's own files when ci/driver-debug compiles them, not before Ghost's.
 * Lockdep ends at its first report. The driver gives a single class to all locks that one of its functions
 * makes, takes several of them, and keeps one while a file is open. It is let pass here, so that lockdep
 * goes on to see Ghost's locks, and spinlocks.
 */
/* The driver's trials of what the kernel has are compiled with it too, and have no __KBUILD_MODNAME. */
#if defined(__KBUILD_MODNAME) && !defined(GHOST_TEST)
/* First those that take the kernel's semaphores themselves. */
#include <linux/fs.h>
#include <linux/mm.h>
#include <linux/mmap_lock.h>
#include <linux/mutex.h>
#include <linux/rwsem.h>

#undef mutex_init
#define mutex_init(mutex)                                              \
	do {                                                           \
		__mutex_init(mutex, #mutex, &__lockdep_no_validate__); \
	} while (0)

#define ghost_unseen(call)     \
	do {                   \
		lockdep_off(); \
		call;          \
		lockdep_on();  \
	} while (0)
#define ghost_unseen_is(call)            \
	({                               \
		int is_;                 \
		lockdep_off();           \
		is_ = call;              \
		lockdep_on();            \
		is_;                     \
	})
#define down_read(sem) ghost_unseen(down_read(sem))
#define down_write(sem) ghost_unseen(down_write(sem))
#define up_read(sem) ghost_unseen(up_read(sem))
#define up_write(sem) ghost_unseen(up_write(sem))
#define downgrade_write(sem) ghost_unseen(downgrade_write(sem))
#define down_read_trylock(sem) ghost_unseen_is(down_read_trylock(sem))
#define down_write_trylock(sem) ghost_unseen_is(down_write_trylock(sem))
#define down_read_interruptible(sem) ghost_unseen_is(down_read_interruptible(sem))
#define down_read_killable(sem) ghost_unseen_is(down_read_killable(sem))
#define down_write_killable(sem) ghost_unseen_is(down_write_killable(sem))
#endif
