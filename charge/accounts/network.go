package accounts

import (
	"errors"
	"fmt"
	"net"
	"os"
	"slices"

	"golang.org/x/sys/unix"

	"github.com/tsugiki/tsugiki/internal/netns"
)

// sourceSoftirq is the source under which the receiving of packets is charged.

const sourceSoftirq = "softirq"

// interfacesPatience is the number of scans in which a container's interfaces are looked for.
const interfacesPatience = 10

// network has the interfaces and cgroups whose received packets are charged to one container.
type network struct {
	pid        int // of a program in the container
	netns      uint64
	interfaces []int
	looks      int
	again      bool // another container that had the interfaces has ended
	cpuGroup   uint64
	sockets    uint64 // inode of the v2 cgroup; 0: none
}

// openNetwork charges an account for the packets that its container's interfaces and sockets
// receive. The caller holds mu.
func (a *Accounts) openNetwork(acct *account, pid int, sockets string) {
	if a.softirq == nil {
		return
	}
	if acct.network == nil {
		acct.network = &network{pid: pid, cpuGroup: acct.group.ID()}
		a.findInterfaces(acct)
		if err := a.softirq.CPUGroup(acct.network.cpuGroup, acct.owner); err != nil {
			a.log.Warn("receiving is not credited", "container", acct.names[0], "err", err)
		}
	}
	if sockets != "" && acct.network.sockets == 0 {
		if err := a.openSockets(acct, sockets); err != nil {
			a.log.Warn("receiving by host sockets is not charged", "container", acct.names[0], "err", err)
		}
	}
}

func (a *Accounts) openSockets(acct *account, dir string) error {
	f, err := os.Open(dir)
	if err != nil {
		return err
	}
	defer f.Close()
	var st unix.Stat_t
	if err := unix.Fstat(int(f.Fd()), &st); err != nil {
		return err
	}
	acct.network.sockets = st.Ino
	return a.softirq.Group(f, acct.owner)
}

// findInterfaces looks for interfaces in the container's own network namespace. It stops when it
// finds one besides the loopback, or after interfacesPatience scans. The containers of a pod share
// their interfaces. The one that looked last is charged.
func (a *Accounts) findInterfaces(acct *account) {
	n := acct.network
	if n == nil || len(n.interfaces) > 0 && !n.again || n.looks >= interfacesPatience {
		return
	}
	n.looks++
	if err := a.tryInterfaces(acct); err != nil && !errors.Is(err, os.ErrNotExist) {
		a.log.Warn("receiving is not charged", "container", acct.names[0], "err", err)
	}
}

func (a *Accounts) tryInterfaces(acct *account) error {
	n := acct.network
	own, err := netns.Open(fmt.Sprintf("/proc/%d/ns/net", n.pid))
	if err != nil {
		return err
	}
	defer own.Close()
	host, err := netns.Current()
	if err != nil {
		return err
	}
	defer host.Close()
	if own.Inode() == host.Inode() {
		n.looks = interfacesPatience // the host's interfaces belong to no container
		return nil
	}
	var found []net.Interface
	err = own.Do(func() (err error) {
		found, err = net.Interfaces()
		return err
	})
	n.netns = own.Inode()
	for _, i := range found {
		if err != nil || i.Flags&net.FlagLoopback != 0 {
			continue
		}
		if err = a.softirq.Interface(n.netns, i.Index, acct.owner); err == nil {
			n.again = false
			if !slices.Contains(n.interfaces, i.Index) {
				n.interfaces = append(n.interfaces, i.Index)
			}
		}
	}
	return err
}

// inherit has the newest account of a network namespace look for the interfaces again, after
// another account has forgotten them.
func (a *Accounts) inherit(netns uint64) {
	var newest *account
	for _, acct := range a.byGroup {
		if n := acct.network; n != nil && n.netns == netns && (newest == nil || acct.owner > newest.owner) {
			newest = acct
		}
	}
	if newest != nil {
		newest.network.again, newest.network.looks = true, 0
	}
}

// forgetNetwork stops charging for a container's interfaces and sockets. The caller holds mu.
func (a *Accounts) forgetNetwork(acct *account) {
	n := acct.network
	if a.softirq == nil || n == nil {
		return
	}
	var errs []error
	for _, i := range n.interfaces {
		errs = append(errs, a.softirq.ForgetInterface(n.netns, i, acct.owner))
	}
	errs = append(errs, a.softirq.ForgetCPUGroup(n.cpuGroup, acct.owner))
	if n.sockets != 0 {
		errs = append(errs, a.softirq.ForgetGroup(n.sockets, acct.owner))
	}
	if err := errors.Join(errs...); err != nil {
		a.log.Error("forget a container's network", "container", acct.names[0], "err", fmt.Errorf("charge: %w", err))
	}
	acct.network = nil
	if len(n.interfaces) > 0 {
		a.inherit(n.netns)
	}
}

// takeSoftirq charges the CPU time of received packets. The caller holds mu.
func (a *Accounts) takeSoftirq() {
	if a.softirq == nil {
		return
	}
	work, err := a.softirq.Take()
	if err != nil {
		a.complain("the receiving of packets is not charged", err)
	}
	for owner, w := range work {
		if acct := a.byOwner[owner]; acct != nil {
			acct.Charge(sourceSoftirq, w.Charge())
		}
	}
}
