// CRC-32C (Castagnoli), reflected.
#pragma once

#include <array>

#include "bits.hpp"

namespace perbit::PERBIT_ARCH {

constexpr uint32_t CRC_POLYNOMIAL = 0x82F63B78;
using CrcTable = std::array<uint32_t, 256>;

constexpr CrcTable byte_table() {
    CrcTable table{};
    for (uint32_t v = 0; v < 256; v++) {
        uint32_t crc = v;
        for (int bit = 0; bit < 8; bit++) crc = crc & 1 ? crc >> 1 ^ CRC_POLYNOMIAL : crc >> 1;
        table[v] = crc;
    }
    return table;
}

// Table j advances a byte over j further zero bytes, so eight bytes take eight independent lookups.
constexpr std::array<CrcTable, 8> slicing_tables() {
    std::array<CrcTable, 8> tables{byte_table()};
    for (int j = 1; j < 8; j++)
        for (int v = 0; v < 256; v++) tables[j][v] = tables[j - 1][v] >> 8 ^ tables[0][tables[j - 1][v] & 255];
    return tables;
}

#ifdef PERBIT_AVX2

// The product of two polynomials modulo the CRC polynomial; bit 31 is the coefficient of 1.
constexpr uint32_t crc_multiply(uint32_t a, uint32_t b) {
    uint32_t product = 0;
    for (uint32_t bit = uint32_t(1) << 31; bit; bit >>= 1) {
        if (a & bit) product ^= b;
        b = b & 1 ? b >> 1 ^ CRC_POLYNOMIAL : b >> 1;
    }
    return product;
}

// Four tables that advance a CRC over `zeros` zero bytes (a power of two), one for each of its bytes.
constexpr std::array<CrcTable, 4> advance_tables(size_t zeros) {
    uint32_t power = uint32_t(1) << 30;  // x, squared to x^(8 zeros)
    for (size_t e = 1; e < 8 * zeros; e *= 2) power = crc_multiply(power, power);
    std::array<CrcTable, 4> tables{};
    for (uint32_t j = 0; j < 4; j++)
        for (uint32_t v = 0; v < 256; v++) tables[j][v] = crc_multiply(power, v << 8 * j);
    return tables;
}

inline uint32_t advance(const std::array<CrcTable, 4>& tables, uint32_t crc) {
    return tables[0][crc & 255] ^ tables[1][crc >> 8 & 255] ^ tables[2][crc >> 16 & 255] ^ tables[3][crc >> 24];
}

// The instruction takes three cycles but a new one can start in each: three streams of STREAM bytes side by side.
template <size_t STREAM>
inline uint32_t crc_three_streams(const uint8_t*& data, size_t& size, uint32_t crc) {
    static constexpr std::array<CrcTable, 4> TABLES = advance_tables(STREAM);
    for (; size >= 3 * STREAM; data += 3 * STREAM, size -= 3 * STREAM) {
        uint64_t a = crc, b = 0, c = 0;
        for (size_t i = 0; i < STREAM; i += 8) {
            a = _mm_crc32_u64(a, load64(data + i));
            b = _mm_crc32_u64(b, load64(data + STREAM + i));
            c = _mm_crc32_u64(c, load64(data + 2 * STREAM + i));
        }
        crc = advance(TABLES, advance(TABLES, uint32_t(a)) ^ uint32_t(b)) ^ uint32_t(c);
    }
    return crc;
}

uint32_t crc32c(const uint8_t* data, size_t size, uint32_t value) {
    uint32_t crc = ~value;
    crc = crc_three_streams<4096>(data, size, crc);
    crc = crc_three_streams<256>(data, size, crc);
    for (; size >= 8; data += 8, size -= 8) crc = uint32_t(_mm_crc32_u64(crc, load64(data)));
    for (; size; data++, size--) crc = _mm_crc32_u8(crc, *data);
    return ~crc;
}

#else

uint32_t crc32c(const uint8_t* data, size_t size, uint32_t value) {
    static constexpr std::array<CrcTable, 8> TABLES = slicing_tables();
    uint32_t crc = ~value;
    for (; size >= 8; data += 8, size -= 8) {
        const uint64_t word = load64(data) ^ crc;
        crc = 0;
        for (int j = 0; j < 8; j++) crc ^= TABLES[7 - j][word >> 8 * j & 255];
    }
    for (; size; data++, size--) crc = crc >> 8 ^ TABLES[0][(crc ^ *data) & 255];
    return ~crc;
}

#endif

}  // namespace perbit::PERBIT_ARCH
