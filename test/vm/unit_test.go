package vm

import (
	"fmt"
	"net/netip"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/tsugiki/tsugiki/internal/testkit"
	"github.com/tsugiki/tsugiki/internal/testkit/machine"
	"github.com/tsugiki/tsugiki/internal/testkit/uml"
)

// units are those of systemd that a start of services takes.
var units = []string{
	"basic.target", "final.target", "local-fs.target", "modprobe@.service", "multi-user.target", "network.target", "paths.target", "shutdown.target",
	"slices.target", "sockets.target", "sysinit.target", "timers.target", "umount.target",
}

// TestUnit has systemd start programs of a guest by the unit of the packages: a client, and a server that a rule
// publishes. Their modules are not loaded before.
func TestUnit(t *testing.T) {
	const systemd = "/lib/systemd/systemd"
	if _, err := os.Stat(systemd); err != nil {
		t.Skip("skip: needs systemd")
	}
	testkit.Program(t, "modprobe")
	modules, err := machine.UML.Modules("", false)
	if err != nil {
		t.Skipf("skip: %v", err)
	}
	source, err := testkit.ModuleRoot()
	if err != nil {
		t.Fatal(err)
	}
	top := testkit.Build(t, testkit.Options{})
	finish := web(t, top.Remote, netip.AddrPortFrom(testkit.RemoteAddr4, 8080), "page of the remote")
	const unit = "tsugiki-guest@.service"
	files := map[string]string{"lib/systemd/system/" + unit: filepath.Join(source, "packaging/systemd", unit)}
	for _, name := range units {
		files["lib/systemd/system/"+name] = "/lib/systemd/system/" + name
	}
	const ours = "/usr/lib/uml/modules"
	index, err := filepath.Glob(ours + "/*/modules.*") // of modprobe
	if err != nil {
		t.Fatal(err)
	}
	for _, path := range append(modules, index...) {
		files["lib/modules"+strings.TrimPrefix(path, ours)] = path
	}
	texts := map[string]string{
		"etc/systemd/system.conf": "[Manager]\nDefaultStandardOutput=tty\nDefaultStandardError=tty\n",
		"etc/os-release":          "ID=test\n",
		"www/index.html":          "page of the guest\n",
	}
	for name, command := range map[string]string{
		"client": fmt.Sprintf("/bin/wget -q -O - http://%s:8080/", testkit.RemoteAddr4),
		"server": "/bin/httpd -f -p 0.0.0.0:80 -h /www",
		"finish": fmt.Sprintf("/bin/sh -c 'wget -q -O /dev/null http://%s:8080/finish; poweroff -f'", testkit.RemoteAddr4),
	} {
		texts["etc/tsugiki/guest/"+name] = "COMMAND=" + command + "\n"
	}
	g := uml.Boot(t, top.Host, uml.Options{
		Script: `
rmmod tun; rmmod vmw_vsock_virtio_transport; rmmod vmw_vsock_virtio_transport_common; rmmod vsock
mkdir -p /usr/bin /sbin /etc/systemd/system/multi-user.target.wants
ln -s /bin/tsugiki /usr/bin/tsugiki; rm -f /sbin/modprobe; ln -s /bin/kmod /sbin/modprobe
ln -s /lib/systemd/system/multi-user.target /etc/systemd/system/default.target
for name in client server finish; do
	ln -s /lib/systemd/system/tsugiki-guest@.service /etc/systemd/system/multi-user.target.wants/tsugiki-guest@$name.service
done
umount /sys /dev /proc
exec /bin/systemd
`,
		Flags: []string{"-e", "0.0.0.0/0=0.0.0.0", "-p", "8081:80"}, Programs: []string{systemd, "kmod"}, Files: files, Texts: texts,
	})
	g.Expect(fmt.Sprintf("page of the remote for %s:", testkit.HostAddr4))
	testkit.Eventually(t, func() error {
		page, err := get(top.Remote, fmt.Sprintf("http://%s:8081/", testkit.HostAddr4))
		if err == nil && page != "page of the guest\n" {
			err = fmt.Errorf("page %q", page)
		}
		return err
	})
	finish()
}
