// SPDX-License-Identifier: GPL-2.0 OR MIT
/*
 * device.c - /dev/nvidia-ghost: requests and events, as uapi/ghost.h has them. The only file that
 * knows user space. Process context, nothing held, everywhere.
 */
#include <linux/capability.h>
#include <linux/compat.h>
#include <linux/cred.h>
#include <linux/file.h>
#include <linux/fs.h>
#include <linux/magic.h>
#include <linux/miscdevice.h>
#include <linux/module.h>
#include <linux/mutex.h>
#include <linux/poll.h>
#include <linux/sched/signal.h>
#include <linux/slab.h>
#include <linux/string.h>
#include <linux/uaccess.h>
#include <linux/user_namespace.h>

#include "core.h"

#define GHOST_BUILD	"0.1.0"

/* An open file. */
struct ghost_file {
	struct ghost_owner *owner;
	struct mutex reading;	/* guards `seen`: one reader after another */
	u64 seen;		/* the last event that was read */
};

/* Any request's argument. */
union argument {
	struct {
		u32 size;
		u32 flags;
	};
	struct ghost_version version;
	struct ghost_create create;
	struct ghost_delete delete;
	struct ghost_limit limit;
	struct ghost_stat stat;
	struct ghost_list list;
	struct ghost_bind bind;
	struct ghost_attach attach;
	struct ghost_pause pause;
	struct ghost_lead lead;
	struct ghost_slice slice;
	struct ghost_test test;
};

static int version(struct ghost_file *file, union argument *argument)
{
	struct ghost_version *version = &argument->version;
	unsigned long flags;

	version->abi = GHOST_ABI;
	version->hooks = ghost_on ? GHOST_HOOKS_MEMORY | GHOST_HOOKS_UVM | GHOST_HOOKS_TIME : 0;
	version->features = IS_ENABLED(GHOST_TEST) ? GHOST_FEATURE_TEST : 0;
	spin_lock_irqsave(&ghost_lock, flags);
	version->gpus = ghost_slots();
	spin_unlock_irqrestore(&ghost_lock, flags);
	strscpy_pad(version->build, GHOST_BUILD, sizeof(version->build));
	strscpy_pad(version->driver, NV_VERSION_STRING, sizeof(version->driver));
	return 0;
}

static int create(struct ghost_file *file, union argument *argument)
{
	if (memchr_inv(argument->create.reserved, 0, sizeof(argument->create.reserved)))
		return -EINVAL;
	return ghost_create(&argument->create);
}

static int delete(struct ghost_file *file, union argument *argument)
{
	return ghost_delete(argument->delete.id);
}

static int limit(struct ghost_file *file, union argument *argument)
{
	struct ghost_limit *limit = &argument->limit;

	limit->wrong = 0;
	if (limit->set & ~(GHOST_SET_WEIGHT | GHOST_SET_MAX | GHOST_SET_MEMORY_MIN |
			   GHOST_SET_MEMORY_LOW | GHOST_SET_MEMORY_HIGH | GHOST_SET_MEMORY_MAX))
		return -EINVAL;
	return ghost_limit(limit);
}

static int stat(struct ghost_file *file, union argument *argument)
{
	if (argument->stat.reserved)
		return -EINVAL;
	return ghost_stat(&argument->stat);
}

/* Lists. */

#define ITEMS_AT_ONCE	128
#define ITEM_SIZE_MAX	4096

static const struct {
	size_t size;
	u32 (*fill)(u64 after, void *items, u32 room);
} lists[] = {
	[GHOST_LIST_CONTAINERS] = { sizeof(struct ghost_container), ghost_list_containers },
	[GHOST_LIST_CLIENTS] = { sizeof(struct ghost_client), ghost_list_clients },
	[GHOST_LIST_GROUPS] = { sizeof(struct ghost_group), ghost_list_groups },
	[GHOST_LIST_GPUS] = { sizeof(struct ghost_gpu), ghost_list_gpus },
	[GHOST_LIST_CGROUPS] = { sizeof(struct ghost_cgroup), ghost_list_cgroups },
};

static int copy_item(const struct ghost_list *list, const void *item, size_t size)
{
	u8 __user *to = u64_to_user_ptr(list->items + (u64)list->written * list->item_size);

	if (copy_to_user(to, item, size) || clear_user(to + size, list->item_size - size))
		return -EFAULT;
	return 0;
}

static int copy_items(struct ghost_list *list, void *items)
{
	const size_t size = lists[list->what].size;
	u32 room = list->count, got, i;
	u64 after = list->after;

	list->count = 0;
	do {
		got = lists[list->what].fill(after, items, ITEMS_AT_ONCE);
		for (i = 0; i < got; i++) {
			const void *item = items + i * size;

			if (list->written < room) {
				if (copy_item(list, item, size))
					return -EFAULT;
				list->written++;
			}
			/* Every item begins with its key. */
			after = *(const u64 *)item;
		}
		list->count += got;
		if (fatal_signal_pending(current))
			return -EINTR;
		cond_resched();
	} while (got == ITEMS_AT_ONCE);
	return 0;
}

static int list(struct ghost_file *file, union argument *argument)
{
	struct ghost_list *list = &argument->list;
	void *items;
	int result;

	list->written = 0;
	if (list->what >= ARRAY_SIZE(lists) || list->item_size < lists[list->what].size ||
	    list->item_size > ITEM_SIZE_MAX)
		return -EINVAL;
	items = kvmalloc_array(ITEMS_AT_ONCE, lists[list->what].size, GFP_KERNEL);
	if (!items)
		return -ENOMEM;
	result = copy_items(list, items);
	kvfree(items);
	return result;
}

/* Members. */

static int bind(struct ghost_file *file, union argument *argument)
{
	const struct ghost_bind *bind = &argument->bind;
	struct file *cgroup;
	struct inode *inode;
	int result = -EINVAL;

	if (bind->reserved)
		return -EINVAL;
	cgroup = fget_raw(bind->cgroup_fd);
	if (!cgroup)
		return -EBADF;
	inode = file_inode(cgroup);
	/* The inode's number is the cgroup's. */
	if (inode->i_sb->s_magic == CGROUP2_SUPER_MAGIC && S_ISDIR(inode->i_mode))
		result = ghost_member_bind(bind->id, inode->i_ino);
	fput(cgroup);
	return result;
}

/* The kernel exports nothing that tells which process a pidfd stands for. */
static struct pid *process_of(struct file *file)
{
#ifdef PID_FS_MAGIC
	if (file_inode(file)->i_sb->s_magic == PID_FS_MAGIC)
		return file_inode(file)->i_private;
#endif
	if (file_inode(file)->i_sb->s_magic == ANON_INODE_FS_MAGIC &&
	    !strcmp(file->f_path.dentry->d_name.name, "[pidfd]"))
		return file->private_data;
	return NULL;
}

static int attach(struct ghost_file *file, union argument *argument)
{
	const struct ghost_attach *attach = &argument->attach;
	struct file *pidfd;
	struct pid *process;
	int result = -EBADF;

	if (attach->reserved)
		return -EINVAL;
	pidfd = fget(attach->pidfd);
	if (!pidfd)
		return -EBADF;
	process = process_of(pidfd);
	if (process)
		result = ghost_member_attach(attach->id, process);
	fput(pidfd);
	return result;
}

/* Time. */

static int pause(struct ghost_file *file, union argument *argument)
{
	const struct ghost_pause *pause = &argument->pause;

	if (pause->reserved)
		return -EINVAL;
	return ghost_owner_pause(file->owner, pause->id, pause->gpu,
				 pause->flags & GHOST_PAUSE_RESUME);
}

static int lead(struct ghost_file *file, union argument *argument)
{
	return ghost_owner_lead(file->owner, argument->lead.flags, argument->lead.lease_us);
}

static int slice(struct ghost_file *file, union argument *argument)
{
	return ghost_owner_slice(file->owner, argument->slice.group, argument->slice.slice_us);
}

#ifdef GHOST_TEST
static int test(struct ghost_file *file, union argument *argument)
{
	return ghost_test(&argument->test);
}
#endif

/* Requests. */

static const struct request {
	int (*run)(struct ghost_file *file, union argument *argument);
	u32 size;		/* of its structure, in version 1 too */
	u32 flags;		/* that it has */
	bool changes;
	bool holds;		/* which means nothing without hooks */
} requests[] = {
	[_IOC_NR(GHOST_IOC_VERSION)] = { version, sizeof(struct ghost_version) },
	[_IOC_NR(GHOST_IOC_CREATE)] = { create, sizeof(struct ghost_create), 0, true, true },
	[_IOC_NR(GHOST_IOC_DELETE)] = { delete, sizeof(struct ghost_delete), 0, true },
	[_IOC_NR(GHOST_IOC_LIMIT)] = { limit, sizeof(struct ghost_limit), 0, true, true },
	[_IOC_NR(GHOST_IOC_STAT)] = { stat, sizeof(struct ghost_stat) },
	[_IOC_NR(GHOST_IOC_LIST)] = { list, sizeof(struct ghost_list) },
	[_IOC_NR(GHOST_IOC_BIND)] = { bind, sizeof(struct ghost_bind), 0, true, true },
	[_IOC_NR(GHOST_IOC_ATTACH)] = { attach, sizeof(struct ghost_attach), 0, true, true },
	[_IOC_NR(GHOST_IOC_PAUSE)] = { pause, sizeof(struct ghost_pause), GHOST_PAUSE_RESUME, true, true },
	[_IOC_NR(GHOST_IOC_LEAD)] = { lead, sizeof(struct ghost_lead),
				      GHOST_LEAD_RENEW | GHOST_LEAD_RESIGN, true, true },
	[_IOC_NR(GHOST_IOC_SLICE)] = { slice, sizeof(struct ghost_slice), 0, true, true },
#ifdef GHOST_TEST
	[_IOC_NR(GHOST_IOC_TEST)] = { test, sizeof(struct ghost_test), 0, true },
#endif
};

static const struct request *request_of(unsigned int command)
{
	const struct request *request;

	if (_IOC_NR(command) >= ARRAY_SIZE(requests) ||
	    command != _IO(GHOST_IOC_MAGIC, _IOC_NR(command)))
		return NULL;
	request = &requests[_IOC_NR(command)];
	return request->run ? request : NULL;
}

/* Who opened the file must have had the right to change something, and who asks must have it. */
static bool may(struct file *file, const struct request *request)
{
	if (!request->changes)
		return file->f_mode & FMODE_READ;
	return file->f_mode & FMODE_WRITE && capable(CAP_SYS_ADMIN) &&
	       file_ns_capable(file, &init_user_ns, CAP_SYS_ADMIN);
}

static int read_argument(const struct request *request, void __user *from,
			 union argument *argument)
{
	int result;
	u32 size;

	if (get_user(size, (u32 __user *)from))
		return -EFAULT;
	if (size < request->size)
		return -EINVAL;
	if (size > PAGE_SIZE)
		return -E2BIG;
	result = copy_struct_from_user(argument, request->size, from, size);
	if (result)
		return result;
	if (argument->flags & ~request->flags)
		return -EINVAL;
	argument->size = request->size;
	return 0;
}

static long ghost_ioctl(struct file *file, unsigned int command, unsigned long where)
{
	const struct request *request = request_of(command);
	void __user *user = (void __user *)where;
	union argument argument;
	int result;

	if (!request)
		return -ENOTTY;
	if (!may(file, request))
		return -EPERM;
	result = read_argument(request, user, &argument);
	if (result)
		return result;
	if (request->holds && !ghost_on)
		return -ENODEV;
	/* Before anything is changed: whether the answer can be given. */
	if (copy_to_user(user, &argument, request->size))
		return -EFAULT;
	result = request->run(file->private_data, &argument);
	if (copy_to_user(user, &argument, request->size) && !result)
		return -EFAULT;
	return result;
}

/* Events. */

#define EVENTS_AT_ONCE	64

/* Up to `room` events. A file's events are read under its lock. */
static ssize_t read_events(struct ghost_file *file, char __user *to, size_t room)
{
	struct ghost_event *events = kmalloc_array(EVENTS_AT_ONCE, sizeof(*events), GFP_KERNEL);
	size_t count = 0;
	u32 got;

	if (!events)
		return -ENOMEM;
	while (count < room) {
		got = ghost_events(file->seen, events, min_t(size_t, room - count, EVENTS_AT_ONCE));
		if (!got)
			break;
		if (copy_to_user(to + count * GHOST_EVENT_SIZE, events, got * GHOST_EVENT_SIZE)) {
			kfree(events);
			return count ? count * GHOST_EVENT_SIZE : -EFAULT;
		}
		file->seen = events[got - 1].seq;
		count += got;
	}
	kfree(events);
	return count * GHOST_EVENT_SIZE;
}

static ssize_t ghost_read(struct file *file, char __user *to, size_t size, loff_t *offset)
{
	struct ghost_file *own = file->private_data;
	size_t room = min_t(size_t, size, MAX_RW_COUNT) / GHOST_EVENT_SIZE;
	ssize_t result;

	if (!room)
		return -EINVAL;
	for (;;) {
		if (mutex_lock_interruptible(&own->reading))
			return -ERESTARTSYS;
		result = read_events(own, to, room);
		mutex_unlock(&own->reading);
		if (result)
			return result;
		if (file->f_flags & O_NONBLOCK)
			return -EAGAIN;
		if (wait_event_interruptible(ghost_events_wait,
					     ghost_events_last() != READ_ONCE(own->seen)))
			return -ERESTARTSYS;
	}
}

static __poll_t ghost_poll(struct file *file, poll_table *table)
{
	struct ghost_file *own = file->private_data;

	poll_wait(file, &ghost_events_wait, table);
	return ghost_events_last() != READ_ONCE(own->seen) ? EPOLLIN | EPOLLRDNORM : 0;
}

/* Files. */

static int ghost_open(struct inode *inode, struct file *file)
{
	struct ghost_file *own = kzalloc(sizeof(*own), GFP_KERNEL_ACCOUNT);

	if (!own)
		return -ENOMEM;
	own->owner = ghost_owner_new();
	if (!own->owner) {
		kfree(own);
		return -ENOMEM;
	}
	mutex_init(&own->reading);
	own->seen = ghost_events_last();
	file->private_data = own;
	return stream_open(inode, file);
}

static int ghost_release(struct inode *inode, struct file *file)
{
	struct ghost_file *own = file->private_data;

	ghost_owner_free(own->owner);
	mutex_destroy(&own->reading);
	kfree(own);
	return 0;
}

static const struct file_operations ghost_operations = {
	.owner = THIS_MODULE,
	.open = ghost_open,
	.release = ghost_release,
	.unlocked_ioctl = ghost_ioctl,
	.compat_ioctl = compat_ptr_ioctl,
	.read = ghost_read,
	.poll = ghost_poll,
};

static struct miscdevice ghost_device = {
	.minor = MISC_DYNAMIC_MINOR,
	.name = GHOST_DEVICE,
	.fops = &ghost_operations,
	.mode = 0600,
};

int ghost_device_begin(void)
{
	return misc_register(&ghost_device);
}

void ghost_device_end(void)
{
	misc_deregister(&ghost_device);
}
