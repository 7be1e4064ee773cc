package main

import (
	"context"
	"fmt"
	"io"
	"net/netip"
	"time"

	"golang.org/x/sys/unix"

	"github.com/tsugiki/tsugiki/bench/measure"
	control "github.com/tsugiki/tsugiki/forward/offload"
	"github.com/tsugiki/tsugiki/forward/offload/dpu"
	"github.com/tsugiki/tsugiki/forward/offload/flows"
)

// What the controller does, in the order in which it is measured.
var actions = []string{"replay, no flows", "replay, all flows", "policy change", "pod added"}

// bigState is a node with many pods, of four addresses each, and many rules.
func bigState(pods, rules int, health *dpu.Health) *flows.State {
	s := &flows.State{
		Subnets: []netip.Prefix{netip.MustParsePrefix("10.0.0.0/8"), netip.MustParsePrefix("2001:db8:77::/64")},
		Switch:  *health, Policy: flows.Policy{Allow: true},
	}
	for i := range pods {
		hi, lo := byte(i>>8), byte(i)
		s.Pods = append(s.Pods, flows.Pod{Port: 256 + i, MAC: dpu.MAC{2, 0, 0, 0, hi, lo}, Addrs: []netip.Addr{
			netip.AddrFrom4([4]byte{10, 1, hi, lo}), netip.AddrFrom4([4]byte{10, 2, hi, lo}),
			netip.MustParseAddr(fmt.Sprintf("2001:db8:77::1:%x", i)), netip.MustParseAddr(fmt.Sprintf("2001:db8:77::2:%x", i)),
		}})
	}
	for i := range rules {
		s.Policy.Rules = append(s.Policy.Rules, rule(i, pods))
	}
	return s
}

// rule denies a pod's port to another pod.
func rule(i, pods int) flows.Rule {
	one := func(n int) netip.Prefix {
		return netip.PrefixFrom(netip.AddrFrom4([4]byte{10, 1, byte(n % pods >> 8), byte(n % pods)}), 32)
	}
	return flows.Rule{From: one(7 * i), To: one(7*i + 3), Protocol: "tcp", Ports: []uint16{uint16(1000 + i)}}
}

// control measures what changes of the flows cost.
func (o *options) control(ctx context.Context, f *fabric, report *measure.Report, progress io.Writer) error {
	n, err := f.newNode(ctx, 1, 0, 1, true)
	if err != nil {
		return err
	}
	host, err := dpu.NewHost(n.endpoint(), "")
	if err != nil {
		return err
	}
	health, err := host.Healthy(ctx)
	if err != nil {
		return err
	}
	if err := n.end(1); err != nil { // this bench is the controller
		return err
	}
	sw, stop, err := control.OpenSwitch(host)
	if err != nil {
		return err
	}
	defer stop()
	c := &controller{n: n, sw: sw, state: bigState(o.pods, o.rules, health)}
	report.Base = actions[0]
	report.Note("%d pods, %d rules, %d flows; Open vSwitch in user space", o.pods, o.rules, len(flows.Compute(c.state)))
	report.Note("a policy change is one rule more, and the controller's verdicts about %d pairs of pods", o.pods*(o.pods-1)/2)
	for round := range o.rounds {
		for _, action := range actions {
			if err := ctx.Err(); err != nil {
				return err
			}
			if err := c.measure(ctx, report, action); err != nil {
				return fmt.Errorf("%s: %w", action, err)
			}
		}
		fmt.Fprintf(progress, "round %d of %d\n", round+1, o.rounds)
	}
	report.Finish(actions)
	return nil
}

type controller struct {
	n     *node
	sw    control.Switch
	state *flows.State
	has   []flows.Flow
}

// cost is CPU time: of the controller, of ovs-ofctl, and of Open vSwitch.
type cost struct{ own, children, ovs time.Duration }

func (c *controller) cost() (sum cost, err error) {
	for who, into := range map[int]*time.Duration{unix.RUSAGE_SELF: &sum.own, unix.RUSAGE_CHILDREN: &sum.children} {
		var u unix.Rusage
		if err := unix.Getrusage(who, &u); err != nil {
			return sum, err
		}
		*into = time.Duration(u.Utime.Nano() + u.Stime.Nano())
	}
	sum.ovs, err = switchTime(c.n.place.Inode())
	return sum, err
}

func (c *controller) measure(ctx context.Context, report *measure.Report, action string) error {
	if action == actions[0] {
		if err := c.n.run(ctx, c.n.place, "ovs-ofctl", "-O", "OpenFlow15", "del-flows", "unix:"+c.n.dir+"/br-int.mgmt"); err != nil {
			return err
		}
	}
	before, err := c.cost()
	if err != nil {
		return err
	}
	began := time.Now()
	if err := c.act(ctx, action); err != nil {
		return err
	}
	took := time.Since(began)
	after, err := c.cost()
	if err != nil {
		return err
	}
	for name, d := range map[string]time.Duration{
		"took": took, "controller": after.own - before.own, "ovs-ofctl": after.children - before.children, "Open vSwitch": after.ovs - before.ovs,
	} {
		report.Add(measure.Metric{Test: "control", Name: name, Unit: "ms"}, action, float64(d)/float64(time.Millisecond))
	}
	return nil
}

// act does what the controller does.
func (c *controller) act(ctx context.Context, action string) error {
	switch action {
	case "policy change":
		c.state.Policy.Rules = append(c.state.Policy.Rules, rule(len(c.state.Policy.Rules), len(c.state.Pods)))
		judge := flows.NewJudge(&c.state.Policy)
		var subjects []*flows.Subject
		for _, p := range c.state.Pods {
			own := judge.Subject(p.Addrs)
			for _, other := range subjects {
				judge.Free(own, other)
			}
			subjects = append(subjects, own)
		}
	case "pod added":
		last := c.state.Pods[len(c.state.Pods)-1]
		next := flows.Pod{Port: last.Port + 1, MAC: last.MAC}
		next.MAC[3]++
		for _, a := range last.Addrs {
			next.Addrs = append(next.Addrs, a.Next())
		}
		c.state.Pods = append(c.state.Pods, next)
	default:
		c.has = flows.Compute(c.state)
		return c.sw.Replace(ctx, c.has)
	}
	want := flows.Compute(c.state)
	lines := flows.Changes(c.has, want)
	c.has = want
	return c.sw.Change(ctx, lines)
}
