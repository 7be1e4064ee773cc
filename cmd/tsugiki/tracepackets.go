package main

import (
	"context"
	"fmt"
	"io"
	"log/slog"
	"net/netip"
	"os/signal"
	"strconv"

	"golang.org/x/sys/unix"

	"github.com/tsugiki/tsugiki/forward"
)

// tracePackets prints a line for each packet that a pod sends.
func tracePackets(pod string, asJSON bool, out io.Writer) error {
	ctx, stop := signal.NotifyContext(context.Background(), unix.SIGINT, unix.SIGTERM)
	defer stop()
	var handler slog.Handler = slog.NewTextHandler(out, nil)
	if asJSON {
		handler = slog.NewJSONHandler(out, nil)
	}
	return withForwardTable(func(t *forward.Table) error {
		pods, err := findPods(t, []string{pod})
		if err != nil {
			return err
		}
		// A reader that is gone ends the trace, which would go on for nobody.
		ctx, end := context.WithCancel(ctx)
		defer end()
		var failed error
		lost, err := t.Trace(ctx, pods[0].Device, func(p forward.Packet) {
			if failed == nil {
				failed = printPacket(handler, p)
			}
			if failed != nil {
				end()
			}
		})
		if err == nil {
			err = failed
		}
		if err == nil && lost > 0 {
			err = fmt.Errorf("%d packets more were not told of, because they were too many at a time", lost)
		}
		return err
	})
}

func printPacket(handler slog.Handler, p forward.Packet) error {
	record := slog.NewRecord(p.Time, slog.LevelInfo, string(p.Reason.Outcome()), 0)
	record.AddAttrs(slog.String("reason", p.Reason.Name), slog.String("protocol", protocolName(p)), slog.Int("length", p.Length))
	switch {
	case !p.From.IsValid():
		record.AddAttrs(slog.String("from", p.FromMAC.String()), slog.String("to", p.ToMAC.String()))
	case p.Protocol == unix.IPPROTO_TCP || p.Protocol == unix.IPPROTO_UDP:
		record.AddAttrs(slog.String("from", netip.AddrPortFrom(p.From, p.FromPort).String()), slog.String("to", netip.AddrPortFrom(p.To, p.ToPort).String()))
	default:
		record.AddAttrs(slog.String("from", p.From.String()), slog.String("to", p.To.String()))
	}
	return handler.Handle(context.Background(), record)
}

// protocolName is the upper protocol of a packet that has ports, or what the frame carries.
func protocolName(p forward.Packet) string {
	names := map[uint8]string{unix.IPPROTO_TCP: "tcp", unix.IPPROTO_UDP: "udp", unix.IPPROTO_ICMP: "icmp echo", unix.IPPROTO_ICMPV6: "icmpv6 echo"}
	if name := names[p.Protocol]; name != "" {
		return name
	}
	if name := map[uint16]string{unix.ETH_P_IP: "ipv4", unix.ETH_P_IPV6: "ipv6", unix.ETH_P_ARP: "arp"}[p.EtherType]; name != "" {
		return name
	}
	return "0x" + strconv.FormatUint(uint64(p.EtherType), 16)
}
