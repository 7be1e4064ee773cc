/*
 * Asks a server of testdata/serve who it is, or serves one connection itself:
 *
 *	client libc|syscall connect ADDR PORT
 *	client libc|syscall listen PORT
 *
 * With "syscall" it makes its calls by syscall(2). Before all else it prints its
 * effective user, for it may be a setuid program.
 */

#include <arpa/inet.h>
#include <err.h>
#include <netinet/in.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <unistd.h>

static bool by_syscall;

static int client_socket(void)
{
#ifdef SYS_socket
	if (by_syscall)
		return syscall(SYS_socket, AF_INET, SOCK_STREAM, 0);
#endif
	return socket(AF_INET, SOCK_STREAM, 0);
}

static int client_connect(int fd, const struct sockaddr_in *to)
{
#ifdef SYS_connect
	if (by_syscall)
		return syscall(SYS_connect, fd, to, sizeof(*to));
#endif
	return connect(fd, (const struct sockaddr *)to, sizeof(*to));
}

static int client_bind(int fd, const struct sockaddr_in *name)
{
#ifdef SYS_bind
	if (by_syscall)
		return syscall(SYS_bind, fd, name, sizeof(*name));
#endif
	return bind(fd, (const struct sockaddr *)name, sizeof(*name));
}

static int client_listen(int fd)
{
#ifdef SYS_listen
	if (by_syscall)
		return syscall(SYS_listen, fd, 1);
#endif
	return listen(fd, 1);
}

static void serve_one(int fd)
{
	struct sockaddr_in from;
	socklen_t size = sizeof(from);
	int connection = accept(fd, (struct sockaddr *)&from, &size);

	if (connection < 0)
		err(1, "accept");
	puts(inet_ntoa(from.sin_addr));
	if (write(connection, "hello\n", 6) != 6)
		err(1, "write");
	close(connection);
}

static void ask(int fd)
{
	static const char request[] = "GET / HTTP/1.0\r\n\r\n";
	char answer[4096];
	size_t have = 0;
	ssize_t n;

	if (write(fd, request, sizeof(request) - 1) < 0)
		err(1, "write");
	while ((n = read(fd, answer + have, sizeof(answer) - 1 - have)) > 0)
		have += n;
	if (n < 0)
		err(1, "read");
	answer[have] = '\0';
	const char *body = strstr(answer, "\r\n\r\n");
	if (!body)
		errx(1, "answered \"%s\"", answer);
	fputs(body + 4, stdout);
}

int main(int argc, char **argv)
{
	struct sockaddr_in addr = {.sin_family = AF_INET};
	bool server = argc == 4 && !strcmp(argv[2], "listen");

	if (!server && argc != 5)
		errx(2, "usage: libc|syscall connect ADDR PORT | listen PORT");
	printf("%d\n", (int)geteuid());
	fflush(stdout);
	by_syscall = !strcmp(argv[1], "syscall");
	addr.sin_port = htons(atoi(argv[argc - 1]));
	if (!server && !inet_aton(argv[3], &addr.sin_addr))
		errx(2, "%s: not an address", argv[3]);
	int fd = client_socket();
	if (fd < 0)
		err(1, "socket");
	if (server) {
		if (client_bind(fd, &addr))
			err(1, "bind");
		if (client_listen(fd))
			err(1, "listen");
		serve_one(fd);
		return 0;
	}
	if (client_connect(fd, &addr))
		err(1, "connect");
	ask(fd);
	return 0;
}
