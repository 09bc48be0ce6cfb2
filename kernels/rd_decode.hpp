// A whole tensor of `rd` decoded in one call: coding/families/rd/tensor.py and what it reads with, never past the end of the data.
//
// What a frame asks for is paid for before it is done, as there; the caller says how much is left.
#pragma once

#include <algorithm>
#include <cmath>
#include <cstring>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "rd_parts.hpp"

namespace perbit {

struct RdLayout {
    size_t planes, rows, columns;
    size_t n() const { return planes * rows * columns; }
    size_t right() const { return planes * columns; }
};

// Thrown when decoding takes more than is left: not an error of the data, and nothing that was asked for has been done.
struct Unpaid {};

[[noreturn]] inline void refuse_value(const std::string& why) { throw std::invalid_argument(why); }

class RdReader {
public:
    RdReader(const uint8_t* data, size_t size, uint64_t memory, uint64_t operations)
        : data_(data), size_(size), memory_left_(memory), operations_left_(operations) {}

    const uint8_t* take(size_t count, const char* what) {
        if (count > remaining())
            refuse_value(std::string(what) + ": needs " + std::to_string(count) + " bytes but only " + std::to_string(remaining()) +
                         " are left; the frame is truncated");
        position_ += count;
        return data_ + position_ - count;
    }
    uint8_t byte(const char* what) { return *take(1, what); }

    uint64_t varint(const char* what, uint64_t limit) {
        uint64_t value = 0;
        for (unsigned shift = 0;; shift += 7) {
            if (shift > 63) refuse_value(std::string(what) + ": a number longer than 63 bits");
            const uint64_t next = byte(what);
            value |= (next & 0x7f) << shift;
            if (next >= 0x80) continue;
            if (next == 0 && shift) refuse_value(std::string(what) + ": a number with needless zero bytes");
            break;
        }
        if (value > limit) refuse_value(std::string(what) + ": " + std::to_string(value) + " is above the limit " + std::to_string(limit));
        return value;
    }

    // Bytes with their length in front, to be read by themselves.
    RdReader section(const char* name) {
        const size_t length = varint(name, INT64_MAX);
        sections.emplace_back(name, length);
        return {take(length, name), length, 0, 0};
    }

    void spend(uint64_t memory, uint64_t operations) {
        memory_spent += memory;
        operations_spent += operations;
        if (memory_spent > memory_left_ || operations_spent > operations_left_) throw Unpaid();
    }

    void end() const {
        if (remaining()) refuse_value(std::to_string(remaining()) + " bytes are left over after the last section");
    }
    const uint8_t* rest() const { return data_ + position_; }
    size_t remaining() const { return size_ - position_; }
    size_t position() const { return position_; }

    std::vector<std::pair<const char*, size_t>> sections;
    uint64_t memory_spent = 0, operations_spent = 0;

private:
    const uint8_t* data_;
    size_t size_, position_ = 0;
    uint64_t memory_left_, operations_left_;
};

// ---- streams

// Values of one block of rANS; the first byte of its section says how it was coded.
inline void read_block(RdReader src, const std::vector<float>& by_level, float* out, size_t n) {
    const uint32_t alphabet = uint32_t(by_level.size());
    const uint64_t mode = src.varint("coding mode", INT64_MAX);
    if (mode == BLOCK_CONSTANT) {
        const float value = by_level[src.varint("symbol", alphabet - 1)];
        src.end();
        std::fill_n(out, n, value);
    } else if (mode == BLOCK_PACKED) {
        const unsigned width = alphabet_width(alphabet);
        const size_t bytes = packed_size(n, width);
        const uint8_t* packed = src.take(bytes, "packed symbols");
        src.end();
        const std::unique_ptr<uint16_t[]> symbols(new uint16_t[n]);
        PERBIT_CALL(unpack, packed, bytes, width, symbols.get(), n);
        PERBIT_CALL(dequantize, symbols.get(), n, by_level.data(), by_level.size(), out);
    } else if (mode == BLOCK_TABLE) {
        const ReadFreqs found = read_freqs(src.rest(), src.remaining(), alphabet);
        src.take(found.used, "frequency table");
        const RansDecoderTable decoder = build_rans_decoder(found.freqs.data(), alphabet, found.bits, by_level.data());
        refuse(PERBIT_CALL(rans_decode, src.rest(), src.remaining(), decoder.model, out, n));
    } else {
        refuse_value("coding mode " + std::to_string(mode) + " does not exist here");
    }
}

inline void read_levels(RdReader& src, size_t columns, const float* by_level, size_t alphabet, float* out, size_t n) {
    const unsigned context = src.byte("context of the mean");
    if (context > STREAM_MEANS) refuse_value("rd: " + std::to_string(context) + " is no context of a mean");
    src.spend(16 * uint64_t(n), 24 * uint64_t(n));
    const RdReader levels = src.section("levels");
    PERBIT_CALL(levels_decode_table, levels.rest(), levels.remaining(), n, std::min(columns, n), mean_of_context(context), by_level,
                alphabet, out);
}

inline void read_sparse(RdReader& src, const std::vector<float>& by_level, float* out, size_t n) {
    const size_t count = src.varint("symbols that are not zero", n);
    src.spend(12 * uint64_t(count), 80 * uint64_t(count));
    const RdReader positions = src.section("positions");
    require(n <= MAX_LENGTH, "positions are 32-bit: n is too large");
    const std::unique_ptr<uint32_t[]> at(new uint32_t[count]);
    PERBIT_CALL(gaps_decode, positions.rest(), positions.remaining(), count, n, at.get());
    const std::unique_ptr<float[]> values(new float[count]);
    read_levels(src, 0, by_level.data() + 1, by_level.size() - 1, values.get(), count);
    std::fill_n(out, n, by_level[0]);
    for (size_t i = 0; i < count; i++) out[at[i]] = values[i];
}

inline void read_stream(RdReader& src, size_t columns, size_t block, const Points& points, uint32_t alphabet, float* out, size_t n) {
    const unsigned mode = src.byte("mode");
    if (mode == STREAM_ZEROS) {
        std::fill_n(out, n, points.at(0));
    } else if (mode == STREAM_ADAPTIVE) {
        const std::vector<float> by_level = points.by_level(alphabet);
        read_levels(src, columns, by_level.data(), alphabet, out, n);
    } else if (mode == STREAM_RANS) {
        const std::vector<float> by_level = points.by_level(uint32_t(src.varint("largest level", alphabet - 1)) + 1);
        for (size_t begin = 0; begin < n; begin += block)
            read_block(src.section("symbols"), by_level, out + begin, std::min(block, n - begin));
    } else if (mode == STREAM_SPARSE) {
        read_sparse(src, points.by_level(alphabet), out, n);
    } else {
        refuse_value("rd: unknown mode " + std::to_string(mode));
    }
}

// ---- parts

// Pieces end at these positions; each has a trellis of its own.
inline void read_part(RdReader& src, size_t columns, size_t block, double step, float* out, size_t n, const std::vector<size_t>& ends) {
    const unsigned kind = src.byte("kind of part");
    if (kind == PART_NOTHING) {
        std::fill_n(out, n, 0.0f);
        return;
    }
    if (kind > PART_GRID) refuse_value("rd: unknown kind of part " + std::to_string(kind));
    Points points;
    points.step = step;
    points.on_grid = kind == PART_GRID;
    if (kind == PART_SHIFTED || kind == PART_WIDE_SHIFTED) std::memcpy(points.shifts, src.take(PART_SHIFTS, "shifts"), PART_SHIFTS);
    const bool bytes = kind == PART_TRELLIS || kind == PART_SHIFTED;
    read_stream(src, columns, block, points, uint32_t(2 * (bytes ? ZERO_OF_BYTES : ZERO_OF_WORDS)), out, n);
    if (points.on_grid) return;
    size_t begin = 0;
    for (const size_t end : ends) {
        PERBIT_CALL(trellis_signs, out + begin, end - begin);
        begin = end;
    }
}

// In pieces of a chunk.
inline void read_values(RdReader& src, size_t columns, double step, float* out, size_t n) {
    std::vector<size_t> ends;
    for (size_t begin = 0; begin < n; begin += RD_CHUNK) ends.push_back(std::min(begin + RD_CHUNK, n));
    read_part(src, columns, RD_CHUNK, step, out, n, ends);
}

// ---- tensors

enum RdHead : uint8_t { HEAD_OUTLIERS = 1, HEAD_BY_FREQUENCY = 2, HEAD_COMPONENTS = 4, HEAD_ALL_ZERO = 8 };

class RdTensor {
public:
    RdTensor(RdReader& src, float step, float* out) : src_(src), step_(step), out_(out) {}

    // `transform` is that of the frequencies; without taps there are none.
    void read(const RdLayout& whole, const RdLayout& by_frequency, const float* transform) {
        const unsigned head = src_.byte("head");
        if (head == HEAD_ALL_ZERO) return (void)std::fill_n(out_, whole.n(), 0.0f);
        if (head > HEAD_ALL_ZERO || ((head & HEAD_BY_FREQUENCY) && !transform)) refuse_value("rd: unknown head " + std::to_string(head));
        layout_ = head & HEAD_BY_FREQUENCY ? by_frequency : whole;
        if (head & HEAD_OUTLIERS) read_outliers();
        if (head & HEAD_COMPONENTS) read_components();
        if (head & HEAD_BY_FREQUENCY) {
            float* const planes = room<Use::PLANES, float>(layout_.n());
            read_classes(planes);
            add_components(planes);
            PERBIT_CALL(mix_planes, transform, planes, layout_.planes, layout_.rows * layout_.columns, out_);
        } else {
            read_values(src_, layout_.columns, step_, out_, layout_.n());
            add_components(out_);
        }
        for (size_t i = 0; i < outliers_.size(); i++) out_[outlier_at_[i]] += outliers_[i];
    }

private:
    static constexpr unsigned CLASSES = 3, COARSEST = 40, MOST_COMPONENTS = 64;

    void read_outliers() {
        const size_t n = layout_.n(), count = src_.varint("number of outliers", n);
        src_.spend(20 * uint64_t(count), 80 * uint64_t(count));
        const RdReader positions = src_.section("positions");
        require(n <= MAX_LENGTH, "positions are 32-bit: n is too large");
        outlier_at_.resize(count);
        PERBIT_CALL(gaps_decode, positions.rest(), positions.remaining(), count, n, outlier_at_.data());
        const uint8_t* values = src_.take(4 * count, "outliers");
        outliers_.resize(count);
        if (count) std::memcpy(outliers_.data(), values, 4 * count);
    }

    void read_components() {
        const size_t rows = layout_.rows, columns = layout_.right();
        rank_ = src_.varint("rank", std::min<size_t>(MOST_COMPONENTS, std::min(rows, columns)));
        src_.spend(16 * uint64_t(rank_) * (rows + columns), uint64_t(rank_) * layout_.n() / 4);
        require(rows >= 1 && columns >= 1, "rd: components without values");
        const unsigned coarse = src_.byte("coarseness");
        if (coarse > COARSEST) refuse_value("rd: " + std::to_string(coarse) + " is no coarseness");
        const uint8_t* halves = src_.take(2 * rank_, "lengths");
        float lengths[MOST_COMPONENTS];
        for (size_t k = 0; k < rank_; k++) {
            lengths[k] = std::bit_cast<float>(uint32_t(halves[2 * k]) << 16 | uint32_t(halves[2 * k + 1]) << 24);
            require(lengths[k] > 0 && std::isfinite(lengths[k]), "rd: a component has no length");
        }
        const size_t left = rank_ * rows, both = left + rank_ * columns;
        vectors_.reset(new float[both]);
        read_part(src_, 0, VECTOR_BLOCK, 1.0, vectors_.get(), both, {left, both});
        for (size_t k = 0; k < rank_; k++)
            for (size_t i = 0; i < rows; i++) vectors_[k * rows + i] /= lengths[k];
        const float times = float(std::pow(2.0, double(coarse) / 2));
        for (size_t i = left; i < both; i++) vectors_[i] = vectors_[i] * times * step_;
    }

    void add_components(float* out) const {
        if (!vectors_) return;
        const size_t plane = layout_.rows * layout_.columns, right = rank_ * layout_.columns;
        const float* const partners = vectors_.get() + rank_ * layout_.rows;
        for (size_t i = 0; i < layout_.planes; i++)
            PERBIT_CALL(add_pairs, vectors_.get(), partners + i * right, rank_, layout_.rows, layout_.columns, out + i * plane);
    }

    // Planes in classes, each of them a part.
    void read_classes(float* planes) {
        require(layout_.n() != 0, "rd: classes of planes without values");
        const uint8_t* numbers = src_.take(layout_.planes, "classes");
        const std::vector<uint8_t> class_of(numbers, numbers + layout_.planes);
        const unsigned last = *std::max_element(class_of.begin(), class_of.end());
        if (last >= CLASSES) refuse_value("rd: class " + std::to_string(last) + " of " + std::to_string(CLASSES));
        const size_t plane = layout_.rows * layout_.columns;
        const size_t largest = size_t(std::max({std::count(class_of.begin(), class_of.end(), 0), std::count(class_of.begin(), class_of.end(), 1),
                                                std::count(class_of.begin(), class_of.end(), 2)}));
        float* const group = room<Use::GROUP, float>(largest * plane);
        for (unsigned index = 0; index <= last; index++) {
            const size_t size = size_t(std::count(class_of.begin(), class_of.end(), index)) * plane;
            read_values(src_, layout_.columns, step_, group, size);
            const float* next = group;
            for (size_t i = 0; i < layout_.planes; i++)
                if (class_of[i] == index) {
                    std::copy_n(next, plane, planes + i * plane);
                    next += plane;
                }
        }
    }

    static constexpr size_t VECTOR_BLOCK = 1 << 13;

    RdReader& src_;
    const float step_;
    float* const out_;
    RdLayout layout_{};
    std::vector<uint32_t> outlier_at_;
    std::vector<float> outliers_;
    size_t rank_ = 0;
    std::unique_ptr<float[]> vectors_;  // left ones, then right ones plane by plane
};

}  // namespace perbit
