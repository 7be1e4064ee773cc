// SPDX-License-Identifier: Apache-2.0
/* A file that never gives what is read of it: on a file system of the program's own. */
#include "attack.h"

#include <linux/fuse.h>
#include <pthread.h>
#include <sched.h>
#include <sys/mman.h>
#include <sys/mount.h>
#include <sys/stat.h>
#include <sys/uio.h>

#define SLOWFILE_WHERE "/mnt"

static void slowfile_write(const char *path, const char *text)
{
	int fd = (int)attack_need(path, open(path, O_WRONLY | O_CLOEXEC));

	attack_need(path, write(fd, text, strlen(text)));
	close(fd);
}

/* Becomes root in a user namespace, where who is nobody may mount too. */
static void slowfile_become_root(void)
{
	unsigned int uid = getuid(), gid = getgid();
	char map[64];

	attack_need("unshare", unshare(CLONE_NEWUSER | CLONE_NEWNS));
	slowfile_write("/proc/self/setgroups", "deny");
	snprintf(map, sizeof(map), "0 %u 1", uid);
	slowfile_write("/proc/self/uid_map", map);
	snprintf(map, sizeof(map), "0 %u 1", gid);
	slowfile_write("/proc/self/gid_map", map);
}

static void slowfile_reply(int fuse, uint64_t unique, int error, const void *body, size_t size)
{
	struct fuse_out_header head = {
		.len = (uint32_t)(sizeof(head) + size), .error = error, .unique = unique};
	struct iovec parts[] = {{&head, sizeof(head)}, {(void *)(uintptr_t)body, size}};

	(void)!writev(fuse, parts, size > 0 ? 2 : 1);
}

/* The directory, or the one file in it. */
static struct fuse_attr slowfile_attr(uint64_t node)
{
	return (struct fuse_attr){
		.ino = node,
		.size = 4096,
		.nlink = 1,
		.blksize = 4096,
		.mode = node == FUSE_ROOT_ID ? S_IFDIR | 0755 : S_IFREG | 0644,
	};
}

static void slowfile_answer(int fuse, const struct fuse_in_header *in)
{
	struct fuse_init_out init = {.major = FUSE_KERNEL_VERSION, .minor = 31, .max_write = 4096};
	struct fuse_entry_out entry = {
		.nodeid = 2, .entry_valid = 1000, .attr_valid = 1000, .attr = slowfile_attr(2)};
	struct fuse_attr_out attr = {.attr_valid = 1000, .attr = slowfile_attr(in->nodeid)};
	struct fuse_open_out open = {.fh = 1};

	switch (in->opcode) {
	case FUSE_INIT:
		slowfile_reply(fuse, in->unique, 0, &init, sizeof(init));
		break;
	case FUSE_LOOKUP:
		slowfile_reply(fuse, in->unique, 0, &entry, sizeof(entry));
		break;
	case FUSE_GETATTR:
		slowfile_reply(fuse, in->unique, 0, &attr, sizeof(attr));
		break;
	case FUSE_OPEN:
		slowfile_reply(fuse, in->unique, 0, &open, sizeof(open));
		break;
	case FUSE_READ: /* never */
	case FUSE_INTERRUPT:
	case FUSE_FORGET:
		break;
	default:
		slowfile_reply(fuse, in->unique, -ENOSYS, NULL, 0);
	}
}

static void *slowfile_serve(void *file)
{
	static char buffer[1 << 16];
	int fuse = (int)(intptr_t)file;

	while (read(fuse, buffer, sizeof(buffer)) > 0 || errno == EINTR)
		slowfile_answer(fuse, (struct fuse_in_header *)buffer);
	return NULL;
}

int attack_slow_file(const char *device, void **page)
{
	char options[64];
	pthread_t thread;
	int fuse, file;

	slowfile_become_root();
	fuse = (int)attack_need(device, open(device, O_RDWR | O_CLOEXEC));
	snprintf(options, sizeof(options), "fd=%d,rootmode=40000,user_id=0,group_id=0", fuse);
	attack_need("mount", mount("slow", SLOWFILE_WHERE, "fuse", 0, options));
	pthread_create(&thread, NULL, slowfile_serve, (void *)(intptr_t)fuse);
	file = (int)attack_need("open", open(SLOWFILE_WHERE "/page", O_RDONLY | O_CLOEXEC));
	*page = mmap(NULL, 4096, PROT_READ, MAP_PRIVATE, file, 0);
	if (*page == MAP_FAILED)
		attack_die("map");
	/* The kernel learns now that there is no FUSE_FLUSH: at our end nobody would answer it. */
	close(file);
	return fuse;
}
