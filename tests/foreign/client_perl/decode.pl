#!/usr/bin/perl
# Decodes a file of batches, one after the other, into JSON lines; written from docs/developers/batch-format.md alone,
# with what Debian's perl and zstd bring. The last line counts the batches, and those that continue the one before them
# in the file. A batch that must be refused ends it with the reason.
use strict;
use warnings;
use Encode qw(decode encode FB_CROAK);
use File::Temp;
use MIME::Base64 qw(encode_base64);

use constant { FACTS => 16384, BATCH => 524288, CONTENT => 2097152, VALUE => 65536, OBJECT => 262144 };
my $NO_DIGEST = "\0" x 16;

sub refuse { die "refused: $_[0]\n" }
sub must { $_[0] or refuse($_[1]) }

# --- BLAKE2b with 16 bytes (RFC 7693) -----------------------------------------------------------------------------

my @IV = map { hex } qw(6a09e667 f3bcc908 bb67ae85 84caa73b 3c6ef372 fe94f82b a54ff53a 5f1d36f1
  510e527f ade682d1 9b05688c 2b3e6c1f 1f83d9ab fb41bd6b 5be0cd19 137e2179);
@IV = map { $IV[2 * $_] << 32 | $IV[2 * $_ + 1] } 0 .. 7;
my @SIGMA = map { [map { hex } split //] } qw(0123456789abcdef ea489fd61c02b753 b8c052fdae367194 7931dcbe265a40f8
  9057f40ce1a2b683d 2c6a0b834d75fe19 c51fed4a0763928b db7ec13950f4862a 6fe9b308c2d714a5 a2847615fb9e3cd0);
$SIGMA[4] = [9, 0, 5, 7, 2, 4, 10, 15, 14, 1, 11, 12, 6, 8, 3, 13];
$SIGMA[$_] = $SIGMA[$_ - 10] for 10, 11;

# The rounds as straight code. Sums wrap at 64 bits under `use integer`; shifts must not be under it.
my $compress = do {
    my $code = 'sub { my ($h, $m, @v) = @_;';
    for my $s (@SIGMA) {
        my @order = ([0, 4, 8, 12], [1, 5, 9, 13], [2, 6, 10, 14], [3, 7, 11, 15],
            [0, 5, 10, 15], [1, 6, 11, 12], [2, 7, 8, 13], [3, 4, 9, 14]);
        for my $g (0 .. 7) {
            my ($A, $B, $C, $D) = map { "\$v[$_]" } @{ $order[$g] };
            my ($x, $y) = map { "\$m->[$s->[2 * $g + $_]]" } 0, 1;
            for ([$x, 32, 24], [$y, 16, 63]) {
                my ($word, $r, $q) = @$_;
                $code .= "{ use integer; $A = $A + $B + $word; } $D ^= $A; $D = $D >> $r | $D << " . (64 - $r) . ';';
                $code .= "{ use integer; $C = $C + $D; } $B ^= $C; $B = $B >> $q | $B << " . (64 - $q) . ';';
            }
        }
    }
    eval $code . ' $h->[$_] ^= $v[$_] ^ $v[$_ + 8] for 0 .. 7 }' or die $@;
};

sub digest {
    my ($bytes) = @_;
    my @h = @IV;
    $h[0] ^= 0x01010010;
    my $length = length $bytes;
    for (my $at = 0; $at == 0 || $at < $length; $at += 128) {
        my $done = $at + 128 < $length ? $at + 128 : $length;
        my @m = unpack 'Q<16', substr($bytes, $at, 128) . "\0" x ($at + 128 - $done);
        my $last = $done == $length ? ~0 : 0;
        $compress->(\@h, \@m, @h, @IV[0 .. 3], $IV[4] ^ $done, $IV[5], $IV[6] ^ $last, $IV[7]);
    }
    return pack 'Q<2', @h;
}

# --- header ---------------------------------------------------------------------------------------------------------

sub parse {
    my ($bytes) = @_;
    must(length $bytes >= 98, 'shorter than a header');
    my %batch;
    (my $magic, my $version, @batch{qw(kind codec flags life first count earliest latest previous definitions
      definitions_digest content_bytes body_bytes zone_bytes stream_bytes)}) =
      unpack 'a4 C4 a16 Q< L< q< q< a16 L< a16 L< L< C C', $bytes;
    must($magic eq 'BSFB', 'not a batch');
    must($version == 1, "version $version, and this reader knows 1");
    my $body = 98 + $batch{zone_bytes} + $batch{stream_bytes};
    my $end = $body + $batch{body_bytes} + ($batch{flags} & 2 ? 82 : 0);
    $batch{length} = $end + 16;
    must($batch{length} <= BATCH && $batch{length} <= length $bytes, 'cut, or longer than a batch may be');
    $batch{digest} = substr $bytes, $end, 16;
    must($batch{digest} eq digest(substr $bytes, 0, $end), 'wrong digest');
    must($batch{kind} == 1 || $batch{kind} == 2, 'unknown kind');
    must($batch{codec} <= 1, 'unknown codec');
    must($batch{flags} <= 2, 'unknown flag, or a slice with a record');
    @batch{qw(zone stream body)} = unpack "x98 a$batch{zone_bytes} a$batch{stream_bytes} a$batch{body_bytes}", $bytes;
    must($batch{zone} =~ /\A[a-z0-9-]{1,32}\z/ && $batch{stream} =~ /\A[a-z0-9._-]{1,64}\z/, 'zone or stream');
    must($batch{count} >= 1 && $batch{count} <= FACTS, 'count');
    must($batch{first} >= 1 && $batch{first} <= 9223372036854775806 - ($batch{count} - 1), 'sequences');
    must($batch{earliest} <= $batch{latest}, 'earliest after latest');
    my $starts = $batch{first} == 1 && !($batch{flags} & 1);
    must(($batch{previous} eq $NO_DIGEST) == $starts, 'previous digest');
    must(($batch{definitions} == 0) == ($batch{definitions_digest} eq $NO_DIGEST), 'definitions');
    must(($batch{definitions} == 0) == ($batch{kind} == 2), 'definitions of this kind');
    must($batch{content_bytes} <= CONTENT && ($batch{codec} || $batch{content_bytes} == $batch{body_bytes}), 'content bytes');
    return \%batch;
}

# --- zstd -----------------------------------------------------------------------------------------------------------

sub check_frame {
    my ($body, $size) = @_;
    must($body =~ /\A\x28\xb5\x2f\xfd./s, 'not a zstd frame');
    my $descriptor = unpack 'x4 C', $body;
    my $single = $descriptor >> 5 & 1;
    my $form = $descriptor >> 6;
    must($form || $single, 'a frame without its size');
    my $at = 5 + !$single + (0, 1, 2, 4)[$descriptor & 3];
    my $bytes = (1, 2, 4, 8)[$form];
    must($at + $bytes <= length $body, 'a cut frame');
    my $stated = unpack(('C', 'S<', 'L<', 'Q<')[$form], substr $body, $at) + ($form == 1 ? 256 : 0);
    must($stated == $size, 'a frame of another size');
    $at += $bytes;
    for (my $last = 0; !$last;) {
        must($at + 3 <= length $body, 'a cut frame');
        my $block = unpack 'L<', substr($body, $at, 3) . "\0";
        $last = $block & 1;
        $at += 3 + (($block >> 1 & 3) == 1 ? 1 : $block >> 3);    # type 1 repeats one byte
    }
    must($at + ($descriptor & 4 ? 4 : 0) == length $body, 'bytes after the frame, or a cut one');
}

sub content_of {
    my ($batch) = @_;
    return $batch->{body} unless $batch->{codec};
    check_frame(@$batch{qw(body content_bytes)});
    my $file = File::Temp->new;
    binmode $file;
    print {$file} $batch->{body};
    close $file;
    open my $zstd, '-|', 'zstd', '-dcq', '--', "$file" or die "zstd: $!";
    binmode $zstd;
    my $found = do { local $/; <$zstd> };
    must(close $zstd && length $found == $batch->{content_bytes}, 'zstd, or content of another size');
    return $found;
}

# --- MessagePack: each read names the type that belongs there -------------------------------------------------------

my ($content, $place);

sub take {
    my ($length) = @_;
    must($place + $length <= length $content, 'cut content');
    $place += $length;
    return substr $content, $place - $length, $length;
}

sub peek { must($place < length $content, 'cut content'); return ord substr $content, $place, 1 }
sub number { my ($form) = @_; return unpack $form, take(length pack $form, 0) }

# The length of a type with the forms first, first + 1, ..., or of a fixed form; undef if it is another type.
sub sized {
    my ($first, $forms, $fixed, $mask) = @_;
    my $type = peek();
    if (defined $fixed && ($type & ~$mask) == $fixed) { take(1); return $type & $mask }
    return undef if $type < $first || $type >= $first + @$forms;
    take(1);
    return number($forms->[$type - $first]);
}

sub array {
    my ($count) = @_;
    my $found = sized(0xdc, ['S>', 'L>'], 0x90, 0x0f);
    must(defined $found && (defined $count ? $found == $count : $found <= FACTS), 'an array of another length');
    return $found;
}

sub is_int { my $type = peek(); return $type < 0x80 || $type >= 0xe0 || $type >= 0xcc && $type <= 0xd3 }

sub int_ {
    must(is_int(), 'not an integer');
    my $type = number('C');
    return $type < 0x80 ? $type : $type - 256 if $type < 0x80 || $type >= 0xe0;
    return number(('C', 'S>', 'L>', 'Q>', 'c', 's>', 'l>', 'q>')[$type - 0xcc]);
}

sub bin {
    my ($limit) = @_;
    my $length = sized(0xc4, ['C', 'S>', 'L>']);
    must(defined $length && $length <= $limit, 'not bytes, or too many');
    return take($length);
}

sub is_text { my $type = peek(); return ($type & 0xe0) == 0xa0 || $type >= 0xd9 && $type <= 0xdb }

sub text {
    my ($least, $limit) = @_;
    my $length = sized(0xd9, ['C', 'S>', 'L>'], 0xa0, 0x1f);
    must(defined $length && $length >= $least && $length <= $limit, 'not a text, or of a wrong length');
    my $bytes = take($length);
    my $text = eval { decode('UTF-8', $bytes, FB_CROAK) };
    must(defined $text, 'text that is not UTF-8');
    return $text;
}

sub nil { peek() == 0xc0 or return 0; take(1); return 1 }

# --- columns --------------------------------------------------------------------------------------------------------

my %UNSIGNED = (1 => 'C', 2 => 'S<', 4 => 'L<', 8 => 'Q<');
my %SIGNED = (1 => 'c', 2 => 's<', 4 => 'l<', 8 => 'q<');

sub planes {
    my ($bytes, $count, $width, $forms) = @_;
    must($width == 0 || $forms->{$width}, 'a width that is not listed');
    must(length $bytes == $count * $width, 'planes of another length');
    return (0) x $count unless $width;
    my @planes = map { [split //, substr $bytes, $_ * $count, $count] } 0 .. $width - 1;
    my $whole = join '', map { my $index = $_; map { $_->[$index] } @planes } 0 .. $count - 1;
    return unpack "($forms->{$width})*", $whole;
}

# A whole or collapsed column, whole.
sub spread {
    my ($count, @entries) = @_;
    return @entries if @entries == $count;
    must(@entries == 1 && $count, 'a column neither whole nor collapsed');
    return (@entries) x $count;
}

sub tags_of {
    my ($batch) = @_;
    array(4);
    my ($tag, $step, $width) = (int_(), int_(), int_());
    my @steps = planes(bin(CONTENT), $batch->{count} - 1, $width, \%SIGNED);
    must($width == 0 || $step == 0, 'a step beside steps');
    @steps = ($step) x @steps unless $width;
    my @tags;
    for my $next (0, @steps) {
        $tag += $next;
        must($tag >= 1 && $tag <= $batch->{definitions}, 'a tag that is not defined');
        push @tags, $tag;
    }
    return @tags;
}

sub times_of {
    my ($batch) = @_;
    array(4);
    my ($earliest, $unit, $width) = (int_(), int_(), int_());
    my @planes = planes(bin(CONTENT), $batch->{count}, $width, \%UNSIGNED);
    must($unit >= 1, 'a unit below 1');
    must($earliest == $batch->{earliest}, 'times other than those of the header');
    my $range = $batch->{latest} - $batch->{earliest};    # at most 2^64 - 1
    my $most = ($range - $range % $unit) / $unit;
    for (@planes) { must($_ <= $most, 'a time beyond the header') }
    my ($least) = sort { $a <=> $b } @planes;
    my ($greatest) = sort { $b <=> $a } @planes;
    must($least == 0 && $greatest * $unit == $range, 'times other than those of the header');
    return map { $earliest + $unit * $_ } @planes;
}

sub offsets_of {
    my ($count, $lowest, $highest) = @_;
    array(3);
    my ($least, $width) = (int_(), int_());
    my @found = map { $least + $_ } planes(bin(CONTENT), $count, $width, \%UNSIGNED);
    for (@found) { must($_ >= $lowest && $_ <= $highest, 'an integer out of its range') }
    return @found;
}

sub other {
    return [none => undef] if nil();
    return [string => text(0, VALUE)] if is_text();
    if (is_int()) {
        my $value = int_();
        must($value > 9223372036854775807, 'a small integer among the others');
        return [uint => "$value"];
    }
    my $type = number('C');
    my $length =
        $type >= 0xd4 && $type <= 0xd8 ? 1 << $type - 0xd4
      : $type >= 0xc7 && $type <= 0xc9 ? number(('C', 'S>', 'L>')[$type - 0xc7])
      :                                  refuse('an entry of a wrong type');
    must($length <= VALUE, 'a value that is too long');
    my $extension = number('C');
    my $bytes = take($length);
    return [bytes => encode_base64($bytes, '')] if $extension == 2;
    must($extension == 1, 'an unknown extension');
    return [json => canonical($bytes)];
}

sub open_samples {
    my ($batch) = @_;
    array(8);
    my $count = $batch->{count};
    my @tags = tags_of($batch);
    my @times = times_of($batch);
    my @kinds = spread($count, unpack 'C*', bin(FACTS));
    my @of = (0) x 4;
    for (@kinds) { must($_ <= 3, 'a kind over 3'); $of[$_]++ }
    my $floats = bin(8 * FACTS);
    must(length($floats) % 8 == 0, 'floats');
    my @values;
    $values[0] = [map { [double => sprintf '%016x', $_] } spread($of[0], unpack '(Q<)*', $floats)];
    $values[1] = [map { [int => "$_"] } offsets_of($of[1], -9223372036854775808, 9223372036854775807)];
    my @bools = spread($of[2], unpack 'C*', bin(FACTS));
    for (@bools) { must($_ <= 1, 'a bool over 1') }
    $values[2] = [map { [bool => $_ ? \'true' : \'false'] } @bools];
    $values[3] = [spread($of[3], map { other() } 1 .. array())];
    my @qualities = offsets_of($count, 0, 4294967295);
    return map {
        my ($type, $value) = @{ shift @{ $values[$kinds[$_]] } };
        { kind => 'sample', tag => \"$tags[$_]", time => $times[$_], quality => \"$qualities[$_]", value_type => $type,
            defined $value ? (value => $value) : () }
    } 0 .. $count - 1;
}

sub labels {
    my $count = sized(0xde, ['S>', 'L>'], 0x80, 0x0f);
    must(defined $count && $count <= 32, 'labels');
    my %found;
    for (1 .. $count) { my $name = text(1, 256); $found{$name} = text(1, 256) }
    return \%found;
}

sub open_messages {
    my ($batch) = @_;
    my $text = sub { text(1, 256) };
    my $long = sub { text(1, 512) };
    my $optional = sub { nil() ? undef : text(1, 256) };
    my @columns = (
        [message_id => $text], [from_zone => sub { text(1, 32) }], [to_zone => $text], [time => \&int_],
        [correlation_id => $optional], [causation_id => $optional], [labels => \&labels],
        [object_media_type => $optional], [object_schema => $optional], [subject => $long], [predicate => $long],
        [object_json => sub { canonical(bin(OBJECT)) }],
    );
    array(scalar @columns);
    my @rows = map { { kind => 'message' } } 1 .. $batch->{count};
    for (@columns) {
        my ($name, $entry) = @$_;
        my @entries = spread($batch->{count}, map { $entry->() } 1 .. array());
        for my $index (0 .. $#rows) { $rows[$index]{$name} = $entries[$index] if defined $entries[$index] }
    }
    for my $row (@rows) {
        must($row->{time} >= 0 && $row->{time} < 1 << 43, 'a time of production');
        $row->{time} *= 1000000;
        must($row->{from_zone} =~ /\A[a-z0-9-]{1,32}\z/, 'a zone');
        must($row->{subject} =~ m{\A[a-z][a-z0-9_]*:[\x21-\x2e\x30-\x7e]+(?:/[\x21-\x7e]+)?\z}, 'a subject');
        must($row->{predicate} =~ /\A[a-z][a-z0-9]*(?:_[a-z0-9]+)*\z/, 'a predicate');
    }
    return @rows;
}

# --- canonical JSON (RFC 8785): checked while it is read, never written again -----------------------------------------

# A number as ECMAScript writes it.
sub es_number {
    my ($value) = @_;
    my $text;
    for my $digits (0 .. 16) { $text = sprintf "%.${digits}e", $value; last if $text == $value }
    my ($sign, $whole, $exponent) = $text =~ /\A(-?)([\d.]+)e([+-]\d+)\z/ or return '';
    (my $digits = $whole) =~ s/\.//;
    $digits =~ s/0+\z//;
    return '0' if $digits eq '';
    my ($k, $n) = (length $digits, $exponent + 1);
    return $sign . $digits . '0' x ($n - $k) if $k <= $n && $n <= 21;
    return $sign . substr($digits, 0, $n) . '.' . substr($digits, $n) if 0 < $n && $n <= 21;
    return $sign . '0.' . '0' x -$n . $digits if -6 < $n && $n <= 0;
    substr($digits, 1, 0) = '.' if $k > 1;
    return $sign . $digits . 'e' . ($n > 0 ? '+' : '-') . abs($n - 1);
}

my $STRING = qr/"(?:[^"\\\x00-\x1f]|\\["\\bfnrt]|\\u00(?:0[0-7be-f]|1[0-9a-f]))*"/;
my %SHORT = (b => "\b", f => "\f", n => "\n", r => "\r", t => "\t", '"' => '"', '\\' => '\\');

sub json_value {
    my ($depth) = @_;
    must($depth <= 100, 'JSON that is too deep');
    return if /\G(?:null|true|false|$STRING)/gc;
    if (/\G(-?(?:0|[1-9]\d*)(?:\.\d+)?(?:e[+-]\d+)?)/gc) {
        must(es_number($1) eq $1, 'a number that is not canonical');
    } elsif (/\G\[/gc) {
        return if /\G\]/gc;
        do { json_value($depth + 1) } while /\G,/gc;
        must(/\G\]/gc, 'JSON that is not canonical');
    } else {
        must(/\G\{/gc, 'JSON that is not canonical');
        return if /\G\}/gc;
        my $before;
        do {
            must(/\G($STRING):/gc, 'JSON that is not canonical');
            (my $key = substr $1, 1, -1) =~ s/\\(?:u(....)|(.))/defined $1 ? chr hex $1 : $SHORT{$2}/ge;
            my $units = encode('UTF-16BE', $key);
            must(!defined $before || $before lt $units, 'keys that are twice or out of order');
            $before = $units;
            json_value($depth + 1);
        } while /\G,/gc;
        must(/\G\}/gc, 'JSON that is not canonical');
    }
}

# The text, if it is canonical; depth counts brackets, so a value at the top is at depth 0.
sub canonical {
    my ($bytes) = @_;
    my $text = eval { decode('UTF-8', $bytes, FB_CROAK) };
    must(defined $text, 'JSON that is not UTF-8');
    for (my $copy = $text) {
        pos() = 0;
        json_value(0);
        must(pos() == length, 'JSON that is not canonical');
    }
    return $text;
}

# --- rows -----------------------------------------------------------------------------------------------------------

sub open_batch {
    my ($batch) = @_;
    ($content, $place) = (content_of($batch), 0);
    my @rows = $batch->{kind} == 1 ? open_samples($batch) : open_messages($batch);
    must($place == length $content, 'bytes after the content');
    my @times = sort { $a <=> $b } map { $_->{time} } @rows;
    must($times[0] == $batch->{earliest} && $times[-1] == $batch->{latest}, 'times other than those of the header');
    my $sequence = $batch->{first};
    for my $row (@rows) {
        my $time = delete $row->{time};
        @$row{qw(stream zone life)} = ($batch->{stream}, $batch->{zone}, unpack 'H*', $batch->{life});
        @$row{qw(sequence source_time_ns)} = (\($sequence . ''), "$time");
        $sequence++;
    }
    return @rows;
}

# A reference to a text is written as it is.
sub json {
    my ($value) = @_;
    return $$value if ref $value eq 'SCALAR' || ref $value eq 'REF';
    return '{' . join(',', map { json($_) . ':' . json($value->{$_}) } sort keys %$value) . '}' if ref $value;
    (my $text = $value) =~ s/(["\\\x00-\x1f])/sprintf '\\u%04x', ord $1/ge;
    return qq("$text");
}

my ($file) = @ARGV;
open my $input, '<:raw', $file or die "$file: $!";
my $rest = do { local $/; <$input> };
binmode STDOUT, ':encoding(UTF-8)';
my ($batches, $continued, %ends) = (0, 0);
while (length $rest) {
    my $batch = parse($rest);
    print json($_), "\n" for open_batch($batch);
    my $chain = "$batch->{zone} $batch->{stream}";
    $continued++ if $batch->{previous} eq ($ends{$chain} // '');
    $ends{$chain} = $batch->{digest};
    $batches++;
    substr $rest, 0, $batch->{length}, '';
}
print json({ batches => \"$batches", continued => \"$continued" }), "\n";
