/*
 * Makes system calls that the engines' default seccomp profiles deny to a program
 * without CAP_SYS_ADMIN, and prints what becomes of each: "ok" or the error.
 * Without a profile, none of them needs a capability.
 */
#include <errno.h>
#include <sched.h>
#include <stdio.h>
#include <string.h>
#include <sys/syscall.h>
#include <unistd.h>

#define KEY_SPEC_SESSION_KEYRING -3
#define KEYCTL_GET_KEYRING_ID	 0

static void say(const char *name, long result)
{
	printf("%s %s\n", name, result < 0 ? strerrorname_np(errno) : "ok");
}

int main(void)
{
	say("keyctl", syscall(SYS_keyctl, KEYCTL_GET_KEYRING_ID, KEY_SPEC_SESSION_KEYRING, 1));
	say("add_key", syscall(SYS_add_key, "user", "graft", "x", 1, KEY_SPEC_SESSION_KEYRING));
	say("unshare", syscall(SYS_unshare, CLONE_NEWUSER));
	return 0;
}
