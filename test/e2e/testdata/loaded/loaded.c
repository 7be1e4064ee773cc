// SPDX-License-Identifier: Apache-2.0
/* Says whether a shim has got to work in it: with any C library, of any kind. */
#include <stdio.h>
#include <sys/socket.h>
#include <unistd.h>

int main(void)
{
	int parked = 0, failed = 0;

	for (int i = 0; i < 20; i++) {
		int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);

		failed += fd < 0;
		close(fd);
	}
	for (int fd = 224; fd < 1024; fd++) {
		int type;
		socklen_t length = sizeof(type);

		parked += getsockopt(fd, SOL_SOCKET, SO_TYPE, &type, &length) == 0;
	}
	printf("failed: %d\nparked: %s\n", failed, parked > 0 ? "yes" : "no");
	return 0;
}
